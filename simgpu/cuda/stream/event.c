/* Events. An event is a mark on the timeline. An interprocess event consists of counters in shared memory instead,
 * because only the process that recorded it knows when its kernels end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/memory/pool.h"
#include "cuda/stream/action.h"
#include "cuda/stream/capture.h"
#include "cuda/stream/stream.h"
#include "image/clock.h"

#define POLL_NS 50000u

/* The shared memory of an interprocess event. */
typedef struct {
    _Atomic uint64_t recorded, done; /* how often it was recorded, and how many of these records are complete */
} shared_event_t;

struct CUevent_st {
    handle_head_t head;
    CUcontext context;
    uint64_t context_id;
    CUgraph captured;         /* the capture in which it was last recorded, when there is nothing to wait for */
    unsigned flags;           /* as given at creation */
    _Atomic uint64_t mark;    /* 0: never recorded, or recorded without earlier work, which counts as complete */
    _Atomic uint64_t time_ns; /* time of the record; 0: ask the timeline */
    shared_event_t *shared;   /* NULL: not shared with other processes */
    int memory;               /* descriptor of the shared memory */
};

typedef struct {
    shared_event_t *shared;
    uint64_t number; /* of the record */
} shared_moment_t;

static bool complete_record(void *what) {
    const shared_moment_t *moment = what;
    uint64_t old = moment->shared->done;
    while (old < moment->number && !atomic_compare_exchange_weak(&moment->shared->done, &old, moment->number))
        continue;
    return true;
}

static bool is_complete(void *what) {
    const shared_moment_t *moment = what;
    return moment->shared->done >= moment->number;
}

static CUresult queue_shared(const shared_moment_t *moment, CUcontext context, CUstream stream, bool per_thread,
                             stream_action_t act) {
    shared_moment_t *argument = malloc(sizeof *argument);
    if (argument == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *argument = *moment;
    return stream_enqueue(context, stream, per_thread, ACTOR_GPU, act, argument);
}

static CUresult shared_event_record(CUevent event, CUcontext context, CUstream stream, bool per_thread) {
    const shared_moment_t moment = {event->shared, atomic_fetch_add(&event->shared->recorded, 1) + 1};
    return queue_shared(&moment, context, stream, per_thread, complete_record);
}

static CUresult shared_event_wait_in(CUevent event, CUcontext context, CUstream stream, bool per_thread) {
    const shared_moment_t moment = {event->shared, event->shared->recorded};
    return queue_shared(&moment, context, stream, per_thread, is_complete);
}

static bool shared_event_done(const shared_event_t *shared) {
    return shared->done >= shared->recorded;
}

static void shared_event_wait(const shared_event_t *shared) {
    uint64_t recorded = shared->recorded;
    while (shared->done < recorded)
        clock_sleep_until(clock_now_ns() + POLL_NS);
}

/* The mapping stays: a record may still be pending. */
static void shared_event_close(CUevent event) {
    if (event->memory >= 0)
        close(event->memory);
}

typedef struct {
    gpu_t *gpu;
    uint64_t mark;
} moment_t;

static bool is_reached(void *argument) {
    const moment_t *moment = argument;
    return timeline_reached(moment->gpu, moment->mark);
}

static CUresult wait_event(CUstream stream, CUevent event, bool per_thread) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    handle_check(event, HANDLE_EVENT);
    if (event->captured != NULL)
        return capture_join(event->captured, stream);
    if (event->shared != NULL)
        return shared_event_wait_in(event, context, stream, per_thread);
    const moment_t moment = {event->context->gpu, event->mark};
    if (timeline_reached(moment.gpu, moment.mark))
        return CUDA_SUCCESS;
    if (moment.gpu == context->gpu) {
        (void)stream_queue(context, stream, per_thread, (gpu_work_t){.after = moment.mark});
        return CUDA_SUCCESS;
    }
    moment_t *argument = malloc(sizeof *argument);
    if (argument == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *argument = moment;
    return stream_enqueue(context, stream, per_thread, ACTOR_GPU, is_reached, argument);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    return wait_event(stream, event, false);
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    return wait_event(stream, event, true);
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL || flags > 7 || (flags & (EVENT_INTERPROCESS | EVENT_DISABLE_TIMING)) == EVENT_INTERPROCESS)
        return CUDA_ERROR_INVALID_VALUE;
    *event = handle_make(HANDLE_EVENT, sizeof **event);
    if (*event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*event)->context = context;
    (*event)->context_id = context->id;
    (*event)->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    handle_check(event, HANDLE_EVENT);
    if (event->shared != NULL)
        shared_event_close(event);
    handle_end(event, HANDLE_EVENT);
    return driver_ready();
}

static void mark_event(CUevent event, gpu_t *gpu, uint64_t mark) {
    event->time_ns = timeline_reached(gpu, mark) ? clock_now_ns() : 0;
    event->mark = mark;
}

static CUresult record(CUevent event, CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    handle_check(event, HANDLE_EVENT);
    if (event == NULL || event->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    CUgraph *capture = stream_capture(stream);
    event->captured = capture != NULL ? *capture : NULL;
    if (event->captured != NULL)
        return CUDA_SUCCESS;
    if (event->shared != NULL)
        return shared_event_record(event, context, stream, per_thread);
    /* In the legacy default stream, the record waits for all blocking streams. */
    if (stream_order(stream, per_thread) == ORDER_LEGACY && !timeline_reached(context->gpu, context->blocking_mark))
        (void)stream_queue(context, stream, per_thread, (gpu_work_t){.percent = 0});
    mark_event(event, context->gpu, *stream_end(context, stream, per_thread));
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    return flags <= 1 ? record(event, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    return record(event, stream, false);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
    return record(event, stream, true);
}

/* Record the end of all work launched in the context so far. */
CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    handle_check(event, HANDLE_EVENT);
    if (context == NULL || event == NULL || event->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (context->captures > 0)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    event->captured = NULL;
    mark_event(event, context->gpu, context->last_mark);
    return context_usable(context);
}

static bool has_ended(CUevent event) {
    return timeline_reached(event->context->gpu, event->mark);
}

CUresult cuEventQuery(CUevent event) {
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    handle_check(event, HANDLE_EVENT);
    if (event->captured != NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (event->shared != NULL)
        return shared_event_done(event->shared) ? context_usable_as(event->context, event->context_id)
                                                : CUDA_ERROR_NOT_READY;
    return has_ended(event) ? context_usable_as(event->context, event->context_id) : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    handle_check(event, HANDLE_EVENT);
    if (event->captured != NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (event->shared != NULL)
        shared_event_wait(event->shared);
    timeline_wait(event->context->gpu, event->mark);
    pools_trim();
    return context_usable_as(event->context, event->context_id);
}

static bool is_recorded(CUevent event) {
    return event->mark != 0 || event->time_ns != 0;
}

static uint64_t moment_ns(CUevent event) {
    if (event->time_ns == 0)
        event->time_ns = timeline_ended_ns(event->context->gpu, event->mark);
    return event->time_ns;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    if (milliseconds == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    handle_check(start, HANDLE_EVENT);
    handle_check(end, HANDLE_EVENT);
    if (start == NULL || end == NULL || ((start->flags | end->flags) & EVENT_DISABLE_TIMING) != 0 ||
        start->context != end->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_recorded(start) || !is_recorded(end))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!has_ended(start) || !has_ended(end))
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)((int64_t)moment_ns(end) - (int64_t)moment_ns(start)) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime(milliseconds, start, end);
}

/* The process that created the event, and the descriptor in it. */
typedef struct {
    uint64_t pid;
    int memory;
} handle_t;
_Static_assert(sizeof(handle_t) <= sizeof(CUipcEventHandle), "it fits into CUDA's structure");

static bool map(CUevent event) {
    void *mapping = mmap(NULL, sizeof *event->shared, PROT_READ | PROT_WRITE, MAP_SHARED, event->memory, 0);
    if (mapping == MAP_FAILED)
        return false;
    event->shared = mapping;
    return true;
}

/* Earlier records count as complete: other processes wait for later ones. */
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
