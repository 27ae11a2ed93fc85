/* How a GPU is set up where a description says nothing of it: as it is delivered. */
#include "nvml_sensors.h"
#include "nvml_session.h"

/* The window through which processors see the memory has a power of two bytes. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    nvmlReturn_t result = session_check(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    unsigned long long total = 1ull << 28;
    while (total < device->image->memory_bytes)
        total <<= 1;
    *memory = (nvmlBAR1Memory_t){.bar1Total = total, .bar1Free = total, .bar1Used = 0};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    nvmlReturn_t result = nvml_tell(device, current, 1);
    return result == NVML_SUCCESS ? nvml_tell(device, pending, 1) : result;
}

nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *mode) {
    return nvml_tell(device, mode, 1);
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode) {
    return nvml_tell(device, mode, 0);
}

nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *mode) {
    return nvml_tell(device, mode, 0);
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *active) {
    return nvml_tell(device, active, 0);
}

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned *mode) {
    return nvml_tell(device, mode, 0);
}
