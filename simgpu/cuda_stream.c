/* Streams and events: each is a mark on the timeline. */
#include <stdlib.h>

#include "cuda_driver.h"
#include "timeline.h"

#define LEGACY ((CUstream)1)
#define PER_THREAD ((CUstream)2)

struct CUstream_st {
    CUcontext context;
    _Atomic uint64_t mark; /* of its end */
    CUgraph capture;       /* NULL: it is not being captured */
};

struct CUevent_st {
    CUcontext context;
    bool captured;            /* last recorded in a stream that was being captured: there is no moment to wait for */
    _Atomic uint64_t mark;    /* 0: never recorded, or nothing came before, which counts as complete */
    _Atomic uint64_t time_ns; /* when that was; 0: it is for the timeline to say */
};

/* One default stream for each thread and context. A context's place may be used again, but only after its work ended.
 */
static _Thread_local _Atomic uint64_t thread_marks[MAX_CONTEXTS];

_Atomic uint64_t *stream_end(CUcontext context, CUstream stream, bool per_thread) {
    if (stream == PER_THREAD || (stream == NULL && per_thread))
        return &thread_marks[context->number];
    if (stream == LEGACY || stream == NULL)
        return &context->legacy_mark;
    return &stream->mark;
}

CUgraph *stream_capture(CUstream stream) {
    return stream == NULL || stream == LEGACY || stream == PER_THREAD ? NULL : &stream->capture;
}

static bool is_capturing(CUstream stream) {
    CUgraph *capture = stream_capture(stream);
    return capture != NULL && *capture != NULL;
}

static void raise_to(_Atomic uint64_t *mark, uint64_t at_least) {
    uint64_t old = *mark;
    while (old < at_least && !atomic_compare_exchange_weak(mark, &old, at_least))
        continue;
}

void stream_extend(CUcontext context, _Atomic uint64_t *stream, uint64_t mark) {
    raise_to(stream, mark);
    raise_to(&context->last_mark, mark);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    (void)flags; /* kernels of a GPU run one after another anyway */
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *stream = calloc(1, sizeof **stream);
    if (*stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*stream)->context = context;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    (void)priority;
    return cuStreamCreate(stream, flags);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    if (stream == NULL || stream == LEGACY || stream == PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    capture_abandon(stream);
    free(stream); /* what it was given to do is in the timeline and in its context */
    return driver_ready();
}

CUresult cuStreamDestroy(CUstream stream) {
    return cuStreamDestroy_v2(stream);
}

static CUresult wait_stream(CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && is_capturing(stream))
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
    CUresult result = context_current(&context);
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

static CUresult wait_event(CUstream stream, CUevent event, bool per_thread) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    /* Kernels of a GPU run in the order of their launches anyway; the calling thread waits for another GPU's. */
    if (event->context->gpu == context->gpu)
        stream_extend(context, stream_end(context, stream, per_thread), event->mark);
    else
        timeline_wait(event->context->gpu, event->mark);
    return CUDA_SUCCESS;
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
    if (stream == NULL || stream == LEGACY || stream == PER_THREAD)
        return context_current(context);
    *context = stream->context;
    return driver_ready();
}

CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *status = is_capturing(stream);
    return driver_ready();
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) {
    return cuStreamIsCapturing(stream, status);
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *event = calloc(1, sizeof **event);
    if (*event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*event)->context = context;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
    free(event);
    return event != NULL ? driver_ready() : CUDA_ERROR_INVALID_HANDLE;
}

static void mark_event(CUevent event, gpu_t *gpu, uint64_t mark) {
    event->time_ns = timeline_reached(gpu, mark) ? timeline_now_ns() : 0;
    event->mark = mark;
}

static CUresult record(CUevent event, CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    event->captured = is_capturing(stream);
    mark_event(event, context->gpu, *stream_end(context, stream, per_thread));
    return CUDA_SUCCESS;
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
    if (context == NULL || event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (context->captures > 0)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    event->captured = false;
    mark_event(event, context->gpu, context->last_mark);
    return context_usable(context);
}

CUresult cuEventQuery(CUevent event) {
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured)
        return CUDA_ERROR_CAPTURED_EVENT;
    return timeline_reached(event->context->gpu, event->mark) ? context_usable(event->context) : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured)
        return CUDA_ERROR_CAPTURED_EVENT;
    timeline_wait(event->context->gpu, event->mark);
    pools_waited();
    return context_usable(event->context);
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
    if (start == NULL || end == NULL || !is_recorded(start) || !is_recorded(end))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!timeline_reached(start->context->gpu, start->mark) || !timeline_reached(end->context->gpu, end->mark))
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)((int64_t)moment_ns(end) - (int64_t)moment_ns(start)) / 1e6);
    return CUDA_SUCCESS;
}
