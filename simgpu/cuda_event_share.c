/* Events of other processes. When a process's kernels end is for that process to know: it counts, in memory that all of
 * them have, how often the event was recorded and how often such a moment has come. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_stream.h"
#include "timeline.h"

#define LOOK_NS 50000u

/* Whose event it is, and by which descriptor. */
typedef struct {
    uint64_t pid;
    int memory;
} handle_t;
_Static_assert(sizeof(handle_t) <= sizeof(CUipcEventHandle), "it is as large as CUDA's");

typedef struct {
    shared_event_t *shared;
    uint64_t number; /* of the record */
} moment_t;

static bool come(void *what) {
    const moment_t *moment = what;
    uint64_t old = moment->shared->done;
    while (old < moment->number && !atomic_compare_exchange_weak(&moment->shared->done, &old, moment->number))
        continue;
    return true;
}

static bool has_come(void *what) {
    const moment_t *moment = what;
    return moment->shared->done >= moment->number;
}

static CUresult queue(const moment_t *moment, CUcontext context, CUstream stream, bool per_thread,
                      stream_action_t act) {
    moment_t *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *moment;
    return stream_enqueue(context, stream, per_thread, ACTOR_GPU, act, kept);
}

CUresult shared_event_record(CUevent event, CUcontext context, CUstream stream, bool per_thread) {
    const moment_t moment = {event->shared, atomic_fetch_add(&event->shared->recorded, 1) + 1};
    return queue(&moment, context, stream, per_thread, come);
}

CUresult shared_event_wait_in(CUevent event, CUcontext context, CUstream stream, bool per_thread) {
    const moment_t moment = {event->shared, event->shared->recorded};
    return queue(&moment, context, stream, per_thread, has_come);
}

bool shared_event_done(const shared_event_t *shared) {
    return shared->done >= shared->recorded;
}

void shared_event_wait(const shared_event_t *shared) {
    uint64_t recorded = shared->recorded;
    while (shared->done < recorded)
        timeline_sleep(timeline_now_ns() + LOOK_NS);
}

/* The memory stays: what was recorded may still have to come. */
void shared_event_close(CUevent event) {
    if (event->memory >= 0)
        close(event->memory);
}

static bool map(CUevent event) {
    void *mapping = mmap(NULL, sizeof *event->shared, PROT_READ | PROT_WRITE, MAP_SHARED, event->memory, 0);
    if (mapping == MAP_FAILED)
        return false;
    event->shared = mapping;
    return true;
}

/* What was recorded before is taken as come: who tells others of an event has them wait for what it records next. */
static bool share(CUevent event) {
    event->memory = memfd_create("simgpu-event", MFD_CLOEXEC);
    return event->memory >= 0 && ftruncate(event->memory, (off_t)sizeof *event->shared) == 0 && map(event);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    handle_check(event, HANDLE_EVENT);
    if (handle == NULL || event == NULL || (event->flags & EVENT_INTERPROCESS) == 0)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->shared == NULL && cuEventSynchronize(event) == CUDA_SUCCESS && !share(event))
        return CUDA_ERROR_OPERATING_SYSTEM;
    const handle_t own = {.pid = (uint64_t)getpid(), .memory = event->memory};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &own, sizeof own);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    handle_t of;
    char path[64];
    memcpy(&of, &handle, sizeof of);
    if (event == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuEventCreate(event, EVENT_DISABLE_TIMING | EVENT_INTERPROCESS);
    if (result != CUDA_SUCCESS)
        return result;
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)of.pid, of.memory);
    (*event)->memory = open(path, O_RDWR | O_CLOEXEC);
    if ((*event)->memory >= 0 && map(*event))
        return CUDA_SUCCESS;
    (void)cuEventDestroy_v2(*event);
    *event = NULL;
    return CUDA_ERROR_INVALID_HANDLE;
}
