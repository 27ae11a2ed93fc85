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

/* Nobody draws: a list that is there, with nothing in it. */
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

/* How much of the time since then each of them had kernels run. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned *count, unsigned long long last_seen_us) {
    static _Thread_local slot_holder_t holders[IMAGE_SLOTS];
    nvmlReturn_t result = nvml_check_whole(device, count);
    if (result == NVML_SUCCESS && device->image->mig_mode)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result != NVML_SUCCESS)
        return result;
    const image_t *image = device->image;
    uint64_t now_ns = timeline_now_ns();
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
        unsigned percent = usage_percent_of(image, holders[i].slot, last_seen_us * 1000, now_ns);
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
    text[read] = '\0'; /* the words of a command are divided by zeros: its first is the program */
    (void)snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}
