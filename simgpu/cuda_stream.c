/* Streams and events: each is a mark on the timeline. */
#include <stdlib.h>

#include "cuda_stream.h"
#include "timeline.h"

/* One default stream for each thread and context. A context's place may be used again, but only after its work ended.
 */
static _Thread_local _Atomic uint64_t thread_marks[MAX_CONTEXTS];

_Atomic uint64_t *stream_end(CUcontext context, CUstream stream, bool per_thread) {
    if (stream == PER_THREAD || (stream == NULL && per_thread))
        return &thread_marks[context->number];
    if (stream == LEGACY || stream == NULL)
        return &context->legacy_mark;
    handle_check(stream, HANDLE_STREAM);
    return &stream->mark;
}

CUgraph *stream_capture(CUstream stream) {
    if (stream_is_default(stream))
        return NULL;
    handle_check(stream, HANDLE_STREAM);
    return &stream->capture;
}

bool stream_is_capturing(CUstream stream) {
    CUgraph *capture = stream_capture(stream);
    return capture != NULL && *capture != NULL;
}

order_t stream_order(CUstream stream, bool per_thread) {
    if (stream == LEGACY || (stream == NULL && !per_thread))
        return ORDER_LEGACY;
    return stream != NULL && stream != PER_THREAD && (stream->flags & NON_BLOCKING) != 0 ? ORDER_NON_BLOCKING
                                                                                         : ORDER_BLOCKING;
}

CUresult stream_context(CUstream stream, CUcontext *context_p) {
    if (stream_is_default(stream))
        return context_current(context_p);
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    handle_check(stream, HANDLE_STREAM);
    *context_p = stream->context;
    return context_usable_as(*context_p, stream->context_id);
}

static CUresult create(CUstream *stream, unsigned flags, int priority) {
    static _Atomic uint64_t last_id = 16; /* default streams have small ones */
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream == NULL || (flags & ~NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *stream = handle_make(HANDLE_STREAM, sizeof **stream);
    if (*stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*stream)->context = context;
    (*stream)->context_id = context->id;
    (*stream)->flags = flags;
    (*stream)->priority = priority;
    (*stream)->id = ++last_id;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return create(stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return create(stream, flags, stream_priority(priority));
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    if (stream_is_default(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    handle_check(stream, HANDLE_STREAM);
    capture_abandon(stream);
    handle_end(stream, HANDLE_STREAM); /* what it was given to do is in the timeline and in its context */
    return driver_ready();
}

CUresult cuStreamDestroy(CUstream stream) {
    return cuStreamDestroy_v2(stream);
}

static CUresult wait_stream(CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result == CUDA_SUCCESS && stream_is_capturing(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result == CUDA_SUCCESS) {
        timeline_wait(context->gpu, *stream_end(context, stream, per_thread));
        pools_waited();
        result = context_usable(context);
    }
    return result;
}

CUresult cuStreamSynchronize(CUstream stream) {
    return wait_stream(stream, false);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return wait_stream(stream, true);
}

static CUresult query_stream(CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    return timeline_reached(context->gpu, *stream_end(context, stream, per_thread)) ? CUDA_SUCCESS
                                                                                    : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamQuery(CUstream stream) {
    return query_stream(stream, false);
}

CUresult cuStreamQuery_ptsz(CUstream stream) {
    return query_stream(stream, true);
}

typedef struct {
    gpu_t *gpu;
    uint64_t mark;
} moment_t;

static bool has_come(void *argument) {
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
        (void)stream_put(context, stream, per_thread, (gpu_work_t){.after = moment.mark});
        return CUDA_SUCCESS;
    }
    moment_t *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = moment;
    return stream_enqueue(context, stream, per_thread, ACTOR_GPU, has_come, kept);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    return wait_event(stream, event, false);
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    return wait_event(stream, event, true);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream_is_default(stream))
        return context_current(context);
    handle_check(stream, HANDLE_STREAM);
    *context = stream->context;
    return driver_ready();
}

CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *status = stream_is_capturing(stream);
    return driver_ready();
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) {
    return cuStreamIsCapturing(stream, status);
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
    event->time_ns = timeline_reached(gpu, mark) ? timeline_now_ns() : 0;
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
    /* In the legacy default stream that is a moment in all streams that block. */
    if (stream_order(stream, per_thread) == ORDER_LEGACY && !timeline_reached(context->gpu, context->blocking_mark))
        (void)stream_put(context, stream, per_thread, (gpu_work_t){.percent = 0});
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

/* All that the context was given to do so far. */
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

static bool is_over(CUevent event) {
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
    return is_over(event) ? context_usable_as(event->context, event->context_id) : CUDA_ERROR_NOT_READY;
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
    pools_waited();
    return context_usable_as(event->context, event->context_id);
}

static bool is_recorded(CUevent event) {
    return event->mark != 0 || event->time_ns != 0;
}

static uint64_t moment_ns(CUevent event) {
    if (event->time_ns == 0)
        event->time_ns = timeline_when_ns(event->context->gpu, event->mark);
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
    if (!is_over(start) || !is_over(end))
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)((int64_t)moment_ns(end) - (int64_t)moment_ns(start)) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime(milliseconds, start, end);
}
