/* Power, temperature, clocks and fixed settings. Values follow from the GPU's model and its load, so they are
 * consistent with each other; none of them is measured. */
#include "nvml/sensors.h"

#include "image/clock.h"
#include "image/models.h"
#include "nvml/session.h"
#include "time/usage.h"

#define MILLI 1000u
#define IDLE_POWER_PERCENT 15u
#define BUSY_POWER_PERCENT 90u
#define MIN_POWER_PERCENT 25u /* lowest configurable limit */
#define IDLE_DEGREES 30u
#define BUSY_DEGREES 65u
#define IDLE_FAN_PERCENT 30u
#define IDLE_MHZ 210u
#define SENSOR_GPU 0u
#define CLOCK_TYPES 4u /* graphics, multiprocessors, memory, video */
#define CLOCK_IDS 4u   /* current, applications, default applications, boost */
#define PERIOD_US 166667u
#define PCIE_GENERATION 4u
#define PCIE_LANES 16u

static const unsigned threshold_degrees[] = {92, 89, 95,
                                             85}; /* shutdown, slowdown, maximum of the memory, maximum of the GPU */
#define THRESHOLDS (sizeof threshold_degrees / sizeof *threshold_degrees)

nvmlReturn_t nvml_check_gpu(nvmlDevice_t device, const void *output) {
    nvmlReturn_t result = session_check(device, output);
    return result == NVML_SUCCESS && device->instance != 0 ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t nvml_report(nvmlDevice_t device, unsigned *output, unsigned value) {
    nvmlReturn_t result = nvml_check_gpu(device, output);
    if (result == NVML_SUCCESS)
        *output = value;
    return result;
}

static unsigned busy_percent(nvmlDevice_t device) {
    return usage_percent(device->image, clock_now_ns());
}

static unsigned interpolate(unsigned idle, unsigned busy, unsigned percent) {
    return idle + (busy - idle) * percent / 100;
}

static unsigned limit_milliwatts(nvmlDevice_t device) {
    return model_for(device->image)->watts * MILLI;
}

static unsigned used_milliwatts(nvmlDevice_t device) {
    return limit_milliwatts(device) / 100 * interpolate(IDLE_POWER_PERCENT, BUSY_POWER_PERCENT, busy_percent(device));
}

static unsigned degrees_of(nvmlDevice_t device) {
    return interpolate(IDLE_DEGREES, BUSY_DEGREES, busy_percent(device));
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    nvmlReturn_t result = nvml_check_gpu(device, milliwatts);
    if (result == NVML_SUCCESS)
        *milliwatts = used_milliwatts(device);
    return result;
}

nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned *mode) {
    return nvml_report(device, mode, 1);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *minimum, unsigned *maximum) {
    nvmlReturn_t result = nvml_check_gpu(device, minimum);
    if (result != NVML_SUCCESS)
        return result;
    if (maximum == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *maximum = limit_milliwatts(device);
    *minimum = *maximum / 100 * MIN_POWER_PERCENT;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatts) {
    unsigned minimum;
    if (milliwatts == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return nvmlDeviceGetPowerManagementLimitConstraints(device, &minimum, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *milliwatts) {
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts) {
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *state) {
    return nvml_report(device, state, 0);
}

nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned *state) {
    return nvml_report(device, state, 0);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *degrees) {
    nvmlReturn_t result = nvml_check_gpu(device, degrees);
    if (result != NVML_SUCCESS)
        return result;
    if (sensor != SENSOR_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    *degrees = degrees_of(device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    unsigned degrees = 0;
    if (temperature == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (temperature->version != NVML_TEMPERATURE_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetTemperature(device, temperature->sensorType, &degrees);
    temperature->temperature = (int)degrees;
    return result;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *degrees) {
    nvmlReturn_t result = nvml_check_gpu(device, degrees);
    if (result != NVML_SUCCESS)
        return result;
    if (threshold >= THRESHOLDS)
        return NVML_ERROR_NOT_SUPPORTED;
    *degrees = threshold_degrees[threshold];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned *count) {
    nvmlReturn_t result = nvml_check_gpu(device, count);
    if (result == NVML_SUCCESS)
        *count = model_for(device->image)->fans;
    return result;
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned fan, unsigned *percent) {
    nvmlReturn_t result = nvml_check_gpu(device, percent);
    if (result != NVML_SUCCESS)
        return result;
    unsigned fans = model_for(device->image)->fans;
    if (fan >= fans)
        return fans == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    *percent = interpolate(IDLE_FAN_PERCENT, 100, busy_percent(device));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *percent) {
    return nvmlDeviceGetFanSpeed_v2(device, 0, percent);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    nvmlReturn_t result = nvml_check_gpu(device, mhz);
    if (result != NVML_SUCCESS)
        return result;
    if (type >= CLOCK_TYPES)
        return NVML_ERROR_INVALID_ARGUMENT;
    const model_t *model = model_for(device->image);
    *mhz = type == NVML_CLOCK_MEM ? model->memory_mhz : model->graphics_mhz;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    nvmlReturn_t result = nvmlDeviceGetMaxClockInfo(device, type, mhz);
    if (result == NVML_SUCCESS && type != NVML_CLOCK_MEM && busy_percent(device) == 0)
        *mhz = IDLE_MHZ;
    return result;
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned id, unsigned *mhz) {
    if (id >= CLOCK_IDS)
        return NVML_ERROR_INVALID_ARGUMENT;
    return id == 0 ? nvmlDeviceGetClockInfo(device, type, mhz) : nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    nvmlReturn_t result = nvml_check_gpu(device, reasons);
    if (result == NVML_SUCCESS)
        *reasons = busy_percent(device) == 0 ? NVML_CLOCKS_EVENT_REASON_GPU_IDLE : 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    nvmlReturn_t result = nvml_check_gpu(device, reasons);
    if (result == NVML_SUCCESS)
        *reasons = NVML_CLOCKS_EVENT_REASON_GPU_IDLE;
    return result;
}

nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us) {
    nvmlReturn_t result = nvml_report(device, percent, 0);
    return result == NVML_SUCCESS ? nvml_report(device, period_us, PERIOD_US) : result;
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us) {
    return nvmlDeviceGetEncoderUtilization(device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *generation) {
    return nvml_report(device, generation, PCIE_GENERATION);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation) {
    return nvml_report(device, generation, PCIE_GENERATION);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *lanes) {
    return nvml_report(device, lanes, PCIE_LANES);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *lanes) {
    return nvml_report(device, lanes, PCIE_LANES);
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kib_per_second) {
    (void)counter;
    return nvml_report(device, kib_per_second, 0);
}

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned *count) {
    return nvml_report(device, count, 0);
}

/* The size of the window through which the host accesses the memory is a power of two. */
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
    nvmlReturn_t result = nvml_report(device, current, 1);
    return result == NVML_SUCCESS ? nvml_report(device, pending, 1) : result;
}

nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *mode) {
    return nvml_report(device, mode, 1);
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode) {
    return nvml_report(device, mode, 0);
}

nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *mode) {
    return nvml_report(device, mode, 0);
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *active) {
    return nvml_report(device, active, 0);
}

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned *mode) {
    return nvml_report(device, mode, 0);
}

static nvmlReturn_t field(nvmlDevice_t device, unsigned id, unsigned *value) {
    unsigned other;
    switch (id) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING:
        return nvmlDeviceGetEccMode(device, value, &other);
    case NVML_FI_DEV_MEMORY_TEMP:
        return nvmlDeviceGetTemperature(device, SENSOR_GPU, value);
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        *value = (unsigned)__builtin_popcountll(device->image->nvlink_peers);
        return NVML_SUCCESS;
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
        return nvmlDeviceGetPowerUsage(device, value);
    case NVML_FI_DEV_POWER_MIN_LIMIT:
        return nvmlDeviceGetPowerManagementLimitConstraints(device, value, &other);
    case NVML_FI_DEV_POWER_MAX_LIMIT:
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT:
        return nvmlDeviceGetPowerManagementLimit(device, value);
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* Each value has its own result. The call itself succeeds if its arguments are valid. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    nvmlReturn_t result = nvml_check_gpu(device, values);
    if (result == NVML_SUCCESS && count < 0)
        result = NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; result == NVML_SUCCESS && i < count; i++) {
        values[i].timestamp = (long long)(clock_now_ns() / 1000);
        values[i].latencyUsec = 0;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].value.ullVal = 0;
        values[i].nvmlReturn = field(device, values[i].fieldId, &values[i].value.uiVal);
    }
    return result;
}
