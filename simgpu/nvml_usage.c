/* What a GPU is doing: memory, utilisation, processes, ECC errors. */
#include "limits.h"
#include "nvml_session.h"
#include "slots.h"
#include "timeline.h"
#include "usage.h"

#define ECC_UNCORRECTED 1u

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t result = session_check(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    uint64_t total_bytes, used_bytes;
    limits_view(device, &total_bytes, &used_bytes);
    *memory = (nvmlMemory_t){.total = total_bytes, .free = total_bytes - used_bytes, .used = used_bytes};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result = session_check(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    if (memory->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    uint64_t total_bytes, used_bytes;
    limits_view(device, &total_bytes, &used_bytes);
    memory->total = total_bytes;
    memory->reserved = 0;
    memory->free = total_bytes - used_bytes;
    memory->used = used_bytes;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    nvmlReturn_t result = session_check(device, rates);
    if (result == NVML_SUCCESS && (device->instance != 0 || device->image->mig_mode))
        return NVML_ERROR_NOT_SUPPORTED; /* utilisation is of whole GPUs */
    if (result == NVML_SUCCESS)
        *rates = (nvmlUtilization_t){.gpu = usage_percent(device->image, timeline_now_ns()), .memory = 0};
    return result;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
                                         unsigned long long *count) {
    nvmlReturn_t result = session_check(device, count);
    if (result != NVML_SUCCESS)
        return result;
    if (type > ECC_UNCORRECTED || counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = type == ECC_UNCORRECTED ? device->image->ecc_uncorrected : 0;
    return NVML_SUCCESS;
}

/* NVML's protocol for lists: too small a room is an error that tells the size. Holders that this process cannot name,
 * because they are in a pid namespace it does not see, are left out, as NVML does in a container. Clients of MPS have a
 * list of their own, as nvidia-smi tells its types C and M+C apart. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, const void *infos, slot_holder_t *holders, bool mps) {
    nvmlReturn_t result = session_check(device, count);
    if (result != NVML_SUCCESS)
        return result;
    size_t found = slots_holders(device, holders, IMAGE_SLOTS);
    unsigned visible = 0;
    for (size_t i = 0; i < found; i++) {
        if (holders[i].pid != 0 && holders[i].mps == mps)
            holders[visible++] = holders[i];
    }
    bool fits = visible <= *count;
    *count = visible;
    if (fits && visible > 0 && infos == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static nvmlReturn_t list_v1(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos, bool mps) {
    slot_holder_t holders[IMAGE_SLOTS];
    nvmlReturn_t result = list(device, count, infos, holders, mps);
    for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){.pid = holders[i].pid, .usedGpuMemory = holders[i].memory_bytes};
    return result;
}

static nvmlReturn_t list_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos, bool mps) {
    slot_holder_t holders[IMAGE_SLOTS];
    nvmlReturn_t result = list(device, count, infos, holders, mps);
    for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++)
        infos[i] = (nvmlProcessInfo_v2_t){.pid = holders[i].pid,
                                          .usedGpuMemory = holders[i].memory_bytes,
                                          .gpuInstanceId = holders[i].instance - 1, /* NVML_NO_INSTANCE below 0 */
                                          .computeInstanceId = holders[i].part - 1};
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos) {
    return list_v1(device, count, infos, false);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                     nvmlProcessInfo_v2_t *infos) {
    return list_v2(device, count, infos, false);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                     nvmlProcessInfo_v2_t *infos) {
    return list_v2(device, count, infos, false);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                     nvmlProcessInfo_v1_t *infos) {
    return list_v1(device, count, infos, true);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                        nvmlProcessInfo_v2_t *infos) {
    return list_v2(device, count, infos, true);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                        nvmlProcessInfo_v2_t *infos) {
    return list_v2(device, count, infos, true);
}
