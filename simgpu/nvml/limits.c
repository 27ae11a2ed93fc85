/* Memory limits by control group, as a node's administrator sets and reads them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "nvml/session.h"
#include "state/cgroup.h"
#include "state/limits.h"
#include "state/slots.h"

#define FIRST_DRIVER 615 /* older drivers lack these functions */

typedef struct {
    const char *nameSpace;
    unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;

typedef struct {
    const char *nameSpace;
    unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;

NVML_API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits);
NVML_API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits);

static nvmlReturn_t check(nvmlDevice_t device, const void *limits) {
    nvmlReturn_t result = session_check(device, limits);
    if (result != NVML_SUCCESS)
        return result;
    if (atoi(device->image->driver_version) < FIRST_DRIVER)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    return device->instance != 0 || device->image->mig_mode ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
    nvmlReturn_t result = check(device, limits);
    if (result == NVML_SUCCESS)
        result = geteuid() == 0 ? session_check_change(device, limits) : NVML_ERROR_NO_PERMISSION;
    if (result != NVML_SUCCESS)
        return result;
    uint64_t memory_bytes = device->image->memory_bytes;
    bool is_limit = limits->hardLimit <= memory_bytes || limits->hardLimit == LIMITS_NONE;
    if (!is_limit || limits->softLimit > memory_bytes || limits->softLimit > limits->hardLimit)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t cgroup = limits->nameSpace != NULL ? cgroup_of(limits->nameSpace) : 0;
    if (cgroup == 0)
        return NVML_ERROR_OPERATING_SYSTEM;
    return limits_set(device, limits->nameSpace, cgroup, limits->softLimit, limits->hardLimit)
               ? NVML_SUCCESS
               : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
    nvmlReturn_t result = check(device, limits);
    if (result != NVML_SUCCESS)
        return result;
    uint64_t soft_bytes, hard_bytes, cgroup = limits->nameSpace != NULL ? cgroup_of(limits->nameSpace) : 0;
    if (cgroup == 0)
        return NVML_ERROR_OPERATING_SYSTEM;
    if (!limits_get(device, cgroup, &soft_bytes, &hard_bytes))
        return NVML_ERROR_NOT_FOUND;
    limits->softLimit = soft_bytes;
    limits->hardLimit = hard_bytes;
    limits->currentUsed = slots_used_bytes_in(device, cgroup);
    return NVML_SUCCESS;
}
