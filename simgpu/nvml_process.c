/* Processes that NVML lists apart from those that compute (nvml_usage.c), and what each of them keeps busy. */
#define _GNU_SOURCE
#include <stdio.h>

#include "nvml_sensors.h"
#include "nvml_session.h"
#include "slots.h"
#include "timeline.h"
#include "usage.h"

typedef struct {
    unsigned pid;
    unsigned long long timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

/* Nobody draws, and clients of MPS are listed as processes that compute: a list that is there, with nothing in it. */
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
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)

NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                      unsigned *count, unsigned long long last_seen_us);
NVML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length);

/* The GPU's own utilisation in equal parts: those with work take turns of one length. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned *count, unsigned long long last_seen_us) {
    static _Thread_local slot_holder_t holders[IMAGE_SLOTS];
    nvmlReturn_t result = nvml_check_whole(device, count);
    if (result == NVML_SUCCESS && device->image->mig_mode)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result != NVML_SUCCESS)
        return result;
    uint64_t now_ns = timeline_now_ns();
    size_t found = slots_holders(device, holders, IMAGE_SLOTS);
    unsigned room = samples != NULL ? *count : 0, visible = 0, working = 0;
    for (size_t i = 0; i < found; i++) {
        working += usage_is_working(device->image, holders[i].slot);
        visible += holders[i].pid != 0;
    }
    *count = visible;
    if (visible == 0 || now_ns / 1000 <= last_seen_us)
        return NVML_ERROR_NOT_FOUND;
    if (visible > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned busy_percent = usage_percent(device->image, now_ns), at = 0;
    for (size_t i = 0; i < found; i++) {
        bool works = usage_is_working(device->image, holders[i].slot);
        if (holders[i].pid != 0)
            samples[at++] =
                (nvmlProcessUtilizationSample_t){.pid = holders[i].pid,
                                                 .timeStamp = now_ns / 1000,
                                                 .smUtil = works && working > 0 ? busy_percent / working : 0};
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
    text[read] = '\0'; /* the words of a command are divided by zeros: its first is the program */
    (void)snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}
