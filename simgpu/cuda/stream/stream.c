#include "cuda/stream/stream.h"

#include "cuda/device/context.h"
#include "cuda/device/device.h"

/* The ends of the per-thread default streams, by context. An entry of the context table is reused only after its work
 * has ended. */
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

static void raise_to(_Atomic uint64_t *mark, uint64_t at_least) {
    uint64_t old = *mark;
    while (old < at_least && !atomic_compare_exchange_weak(mark, &old, at_least))
        continue;
}

uint64_t stream_queue(CUcontext context, CUstream stream, bool per_thread, gpu_work_t work) {
    work.context = context->number;
    work.order = stream_order(stream, per_thread);
    uint64_t mark = timeline_queue(context->gpu, stream_end(context, stream, per_thread), &work);
    raise_to(&context->last_mark, mark_make(MARK_CONTEXT, context->number, mark_number(mark)));
    if (work.order == ORDER_BLOCKING)
        raise_to(&context->blocking_mark, mark_make(MARK_BLOCKING, context->number, mark_number(mark)));
    return mark;
}
