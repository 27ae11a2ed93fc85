/* What a GPU is doing: memory, utilization, processes, ECC errors. */
#define _GNU_SOURCE
#include <stdio.h>

#include "image/clock.h"
#include "nvml/sensors.h"
#include "nvml/session.h"
#include "state/slots.h"
#include "time/usage.h"

#define ECC_UNCORRECTED 1u

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t result = session_check(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    uint64_t total_bytes, used_bytes;
    slots_memory_info(device, &total_bytes, &used_bytes);
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
    slots_memory_info(device, &total_bytes, &used_bytes);
    memory->total = total_bytes;
    memory->reserved = 0;
    memory->free = total_bytes - used_bytes;
    memory->used = used_bytes;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    nvmlReturn_t result = session_check(device, rates);
    if (result == NVML_SUCCESS && (device->instance != 0 || device->image->mig_mode))
        return NVML_ERROR_NOT_SUPPORTED; /* utilization is known for whole GPUs only */
    if (result == NVML_SUCCESS)
        *rates = (nvmlUtilization_t){.gpu = usage_percent(device->image, clock_now_ns()), .memory = 0};
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

/* NVML's protocol for lists: a buffer that is too small is an error that returns the needed size. Processes in pid
 * namespaces that are not visible from here are left out, as NVML does in a container. MPS clients have a separate
 * list, since nvidia-smi distinguishes the types C and M+C. */
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
                                          .gpuInstanceId = holders[i].instance - 1, /* 0 - 1 is NVML_NO_INSTANCE */
                                          .computeInstanceId = holders[i].compute_instance - 1};
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

typedef struct {
    unsigned pid;
    unsigned long long timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

/* There are no graphics processes: return an empty list. */
#define EMPTY_LIST(name, info_t)                                                                                       \
    NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned *count, info_t *infos);                                   \
    nvmlReturn_t name(nvmlDevice_t device, unsigned *count, info_t *infos) {                                           \
        (void)infos;                                                                                                   \
        nvmlReturn_t result = session_check(device, count);                                                            \
        if (result == NVML_SUCCESS)                                                                                    \
            *count = 0;                                                                                                \
        return result;                                                                                                 \
    }
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)

NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                      unsigned *count, unsigned long long last_seen_us);
NVML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length);

/* Return for how much of the time since then each process had kernels running. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned *count, unsigned long long last_seen_us) {
    static _Thread_local slot_holder_t holders[IMAGE_SLOTS];
    nvmlReturn_t result = nvml_check_gpu(device, count);
    if (result == NVML_SUCCESS && device->image->mig_mode)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result != NVML_SUCCESS)
        return result;
    const image_t *image = device->image;
    uint64_t now_ns = clock_now_ns();
    size_t found = slots_holders(device, holders, IMAGE_SLOTS);
    unsigned room = samples != NULL ? *count : 0;
    *count = 0;
    for (size_t i = 0; i < found; i++)
        *count += holders[i].pid != 0;
    if (*count == 0 || now_ns / 1000 <= last_seen_us)
        return NVML_ERROR_NOT_FOUND;
    if (*count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;

    unsigned at = 0;
    for (size_t i = 0; i < found; i++) {
        if (holders[i].pid == 0)
            continue;
        unsigned percent = usage_percent_of_slot(image, holders[i].slot, last_seen_us * 1000, now_ns);
        samples[at++] =
            (nvmlProcessUtilizationSample_t){.pid = holders[i].pid, .timeStamp = now_ns / 1000, .smUtil = percent};
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    unsigned gpus;
    char path[64], text[4096];
    if (session_gpus(&gpus) == NULL)
        return NVML_ERROR_UNINITIALIZED;
    if (name == NULL || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    (void)snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NVML_ERROR_NOT_FOUND;
    size_t read = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[read] = '\0'; /* zeros separate the words of the command: the first one is the program */
    (void)snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}
