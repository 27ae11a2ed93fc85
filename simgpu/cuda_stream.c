/* Streams and events: each is a moment on the timeline. */
#include <stdlib.h>

#include "cuda_driver.h"
#include "timeline.h"

#define LEGACY ((CUstream)1)
#define PER_THREAD ((CUstream)2)

struct CUstream_st {
    CUcontext context;
    _Atomic uint64_t end_ns;
    CUgraph capture; /* NULL: it is not being captured */
};

struct CUevent_st {
    CUcontext context;
    bool captured;            /* last recorded in a stream that was being captured: there is no moment to wait for */
    _Atomic uint64_t time_ns; /* 0: never recorded, which counts as complete */
};

/* One default stream for each thread and context. A context's slot may be used again, but only after its work ended. */
static _Thread_local _Atomic uint64_t thread_end_ns[MAX_CONTEXTS];

_Atomic uint64_t *stream_end(CUcontext context, CUstream stream, bool per_thread) {
    if (stream == PER_THREAD || (stream == NULL && per_thread))
        return &thread_end_ns[context->number];
    if (stream == LEGACY || stream == NULL)
        return &context->legacy_end_ns;
    return &stream->end_ns;
}

CUgraph *stream_capture(CUstream stream) {
    return stream == NULL || stream == LEGACY || stream == PER_THREAD ? NULL : &stream->capture;
}

static bool is_capturing(CUstream stream) {
    CUgraph *capture = stream_capture(stream);
    return capture != NULL && *capture != NULL;
}

static void raise_to(_Atomic uint64_t *moment, uint64_t at_least_ns) {
    uint64_t old_ns = *moment;
    while (old_ns < at_least_ns && !atomic_compare_exchange_weak(moment, &old_ns, at_least_ns))
        continue;
}

void stream_extend(CUcontext context, _Atomic uint64_t *stream, uint64_t end_ns) {
    raise_to(stream, end_ns);
    raise_to(&context->last_end_ns, end_ns);
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
    free(stream); /* what it was given to do is in the timeline and in its context */
    return driver_ready();
}

static CUresult wait_stream(CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && is_capturing(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result == CUDA_SUCCESS) {
        timeline_wait(*stream_end(context, stream, per_thread));
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
    return *stream_end(context, stream, per_thread) <= timeline_now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
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
    stream_extend(context, stream_end(context, stream, per_thread), event->time_ns);
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

static CUresult record(CUevent event, CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    event->captured = is_capturing(stream);
    uint64_t end_ns = *stream_end(context, stream, per_thread);
    uint64_t now_ns = timeline_now_ns();
    event->time_ns = end_ns > now_ns ? end_ns : now_ns;
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
    uint64_t end_ns = context->last_end_ns;
    uint64_t now_ns = timeline_now_ns();
    event->captured = false;
    event->time_ns = end_ns > now_ns ? end_ns : now_ns;
    return context_usable(context);
}

CUresult cuEventQuery(CUevent event) {
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured)
        return CUDA_ERROR_CAPTURED_EVENT;
    return event->time_ns <= timeline_now_ns() ? context_usable(event->context) : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured)
        return CUDA_ERROR_CAPTURED_EVENT;
    timeline_wait(event->time_ns);
    return context_usable(event->context);
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    if (milliseconds == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (start == NULL || end == NULL || start->time_ns == 0 || end->time_ns == 0)
        return CUDA_ERROR_INVALID_HANDLE;
    if (timeline_now_ns() < start->time_ns || timeline_now_ns() < end->time_ns)
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)((int64_t)end->time_ns - (int64_t)start->time_ns) / 1e6);
    return CUDA_SUCCESS;
}
