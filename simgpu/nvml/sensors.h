/* The part of NVML's ABI for sensors and topology: power, temperature, clocks, links, affinity. */
#ifndef SIMGPU_NVML_SENSORS_H
#define SIMGPU_NVML_SENSORS_H

#include "nvml/abi.h"

typedef struct {
    unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
    unsigned version, sensorType;
    int temperature;
} nvmlTemperature_t;
#define NVML_TEMPERATURE_V1 (sizeof(nvmlTemperature_t) | 1u << 24)

typedef union {
    double dVal;
    int siVal;
    unsigned uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
    signed long long sllVal;
} nvmlValue_t;
#define NVML_VALUE_TYPE_UNSIGNED_INT 1u

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
#define NVML_FI_DEV_ECC_CURRENT 1u
#define NVML_FI_DEV_ECC_PENDING 2u
#define NVML_FI_DEV_MEMORY_TEMP 82u
#define NVML_FI_DEV_NVLINK_LINK_COUNT 91u
#define NVML_FI_DEV_POWER_AVERAGE 185u
#define NVML_FI_DEV_POWER_INSTANT 186u
#define NVML_FI_DEV_POWER_MIN_LIMIT 187u
#define NVML_FI_DEV_POWER_MAX_LIMIT 188u
#define NVML_FI_DEV_POWER_DEFAULT_LIMIT 189u
#define NVML_FI_DEV_POWER_CURRENT_LIMIT 190u
#define NVML_FI_DEV_POWER_REQUESTED_LIMIT 192u

typedef struct {
    uint8_t clusterUuid[16];
    nvmlReturn_t status;
    unsigned cliqueId;
    uint8_t state;
} nvmlGpuFabricInfo_t;

typedef struct {
    unsigned version;
    uint8_t clusterUuid[16];
    nvmlReturn_t status;
    unsigned cliqueId;
    uint8_t state;
    unsigned healthMask;
} nvmlGpuFabricInfo_v2_t;
#define NVML_GPU_FABRIC_INFO_V2 (sizeof(nvmlGpuFabricInfo_v2_t) | 2u << 24)

typedef struct {
    unsigned version;
    uint8_t clusterUuid[16];
    nvmlReturn_t status;
    unsigned cliqueId;
    uint8_t state;
    unsigned healthMask;
    uint8_t healthSummary;
} nvmlGpuFabricInfo_v3_t;
#define NVML_GPU_FABRIC_INFO_V3 (sizeof(nvmlGpuFabricInfo_v3_t) | 3u << 24)
#define NVML_GPU_FABRIC_STATE_NOT_SUPPORTED 0u
#define NVML_GPU_FABRIC_STATE_COMPLETED 3u

#define NVML_CLOCK_MEM 2u
#define NVML_CLOCKS_EVENT_REASON_GPU_IDLE 0x1ull

NVML_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory);
NVML_API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending);
NVML_API nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *mode);
NVML_API nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode);
NVML_API nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *mode);
NVML_API nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *active);
NVML_API nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned *mode);

NVML_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts);
NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned *mode);
NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatts);
NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *milliwatts);
NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *minimum,
                                                                   unsigned *maximum);
NVML_API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts);
NVML_API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *state);
NVML_API nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned *state);

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *degrees);
NVML_API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature);
NVML_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *degrees);
NVML_API nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned *count);
NVML_API nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *percent);
NVML_API nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned fan, unsigned *percent);

NVML_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz);
NVML_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz);
NVML_API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz);
NVML_API nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz);
NVML_API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned id, unsigned *mhz);
NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons);
NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons);
NVML_API nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons);
NVML_API nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons);
NVML_API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us);
NVML_API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us);

NVML_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *generation);
NVML_API nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation);
NVML_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *lanes);
NVML_API nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *lanes);
NVML_API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kib_per_second);
NVML_API nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned *count);

NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *cpus);
NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *cpus,
                                                          unsigned scope);
NVML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *nodes,
                                                  unsigned scope);
NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info);
NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info);

/* Check the arguments of calls that MIG devices do not support. */
nvmlReturn_t nvml_check_gpu(nvmlDevice_t device, const void *output);
/* Return a constant value from such a call. */
nvmlReturn_t nvml_report(nvmlDevice_t device, unsigned *output, unsigned value);

#endif
