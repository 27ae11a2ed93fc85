/* Events. Each event set remembers its position in each GPU's list. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "image/clock.h"
#include "nvml/session.h"

#define SUPPORTED (NVML_EVENT_XID | NVML_EVENT_DOUBLE_BIT_ECC)
#define POLL_NS 10000000ull
#define NS_PER_MS 1000000ull

struct nvml_event_set {
    struct {
        nvmlDevice_t device;
        unsigned long long types;
        uint64_t next;
        bool loss_reported;
    } registered[IMAGE_MAX_GPUS];
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    unsigned count;
    if (session_gpus(&count) == NULL)
        return NVML_ERROR_UNINITIALIZED;
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    return *set != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    nvmlReturn_t result = session_check(device, types);
    if (result == NVML_SUCCESS)
        *types = SUPPORTED;
    return result;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    nvmlReturn_t result = session_check(device, set);
    if (result != NVML_SUCCESS)
        return result;
    if ((types & ~SUPPORTED) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (device->image->mute)
        return NVML_ERROR_UNKNOWN;
    if (set->registered[device->index].device == NULL)
        set->registered[device->index].next = device->image->event_count;
    set->registered[device->index].device = device;
    set->registered[device->index].types |= types;
    return NVML_SUCCESS;
}

static bool next_event(nvmlEventSet_t set, unsigned index, nvmlEventData_t *data) {
    nvmlDevice_t device = set->registered[index].device;
    uint64_t count = device->image->event_count;
    uint64_t *next = &set->registered[index].next;
    if (count - *next > IMAGE_EVENTS)
        *next = count - IMAGE_EVENTS;
    while (*next < count) {
        const image_event_t *event = &device->image->events[(*next)++ % IMAGE_EVENTS];
        if ((event->type & set->registered[index].types) == 0)
            continue;
        *data = (nvmlEventData_t){.device = device,
                                  .eventType = event->type,
                                  .eventData = event->data,
                                  .gpuInstanceId = NVML_NO_INSTANCE,
                                  .computeInstanceId = NVML_NO_INSTANCE};
        return true;
    }
    return false;
}

/* Deliver pending events before reporting the loss of a GPU, so that its XID is not missed. Report the loss
 * immediately the first time. Later calls wait for their timeout first, since some clients poll without a pause. */
static nvmlReturn_t poll(nvmlEventSet_t set, nvmlEventData_t *data, bool *again_p) {
    bool lost = false, again = true;
    for (unsigned i = 0; i < IMAGE_MAX_GPUS; i++) {
        if (set->registered[i].device == NULL)
            continue;
        if (next_event(set, i, data))
            return NVML_SUCCESS;
        bool is_lost = set->registered[i].device->image->lost;
        again = again && (!is_lost || set->registered[i].loss_reported);
        set->registered[i].loss_reported = is_lost;
        lost = lost || is_lost;
    }
    *again_p = again;
    return lost ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_TIMEOUT;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms) {
    unsigned count;
    if (session_gpus(&count) == NULL)
        return NVML_ERROR_UNINITIALIZED;
    if (set == NULL || data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t end_ns = clock_now_ns() + timeout_ms * NS_PER_MS;
    for (;;) {
        bool again = false;
        nvmlReturn_t result = poll(set, data, &again);
        uint64_t now_ns = clock_now_ns();
        if (result == NVML_SUCCESS || !again || now_ns >= end_ns)
            return result;
        clock_sleep_until(now_ns + POLL_NS < end_ns ? now_ns + POLL_NS : end_ns);
    }
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms) {
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
