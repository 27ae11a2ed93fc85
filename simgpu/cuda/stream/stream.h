/* What a stream is, and how work is put into it. */
#ifndef SIMGPU_CUDA_STREAM_H
#define SIMGPU_CUDA_STREAM_H

#include "cuda/device/handle.h"
#include "time/timeline.h"

#define LEGACY ((CUstream)1)
#define PER_THREAD ((CUstream)2)
#define NON_BLOCKING 1u

struct CUstream_st {
    handle_head_t head;
    CUcontext context;
    uint64_t context_id;
    _Atomic uint64_t mark; /* of its end */
    CUgraph capture;       /* NULL: it is not being captured */
    CUstream next_joined;  /* in the same capture */
    unsigned flags;
    int priority;
    uint64_t id;
};

static inline bool stream_is_default(CUstream stream) {
    return stream == NULL || stream == LEGACY || stream == PER_THREAD;
}

/* cuda_stream.c: where the graph is that a stream is being captured to; NULL for a default stream, which cannot be. */
CUgraph *stream_capture(CUstream stream);
bool stream_is_capturing(CUstream stream);
/* The forms for per-thread default streams: the handle 0 means the thread's own, which has a handle, too. */
static inline CUstream stream_of(CUstream stream, bool per_thread) {
    return stream == NULL && per_thread ? (CUstream)2 : stream;
}
/* The one that it is of; the current one for a default stream. */
CUresult stream_context(CUstream stream, CUcontext *context_p);

/* The mark of a stream's end. `per_thread`: what the handle 0 means. */
_Atomic uint64_t *stream_end(CUcontext context, CUstream stream, bool per_thread);
order_t stream_order(CUstream stream, bool per_thread);

/* Work of any kind, whose context and order are the stream's. Returns the mark of its end. */
uint64_t stream_queue(CUcontext context, CUstream stream, bool per_thread, gpu_work_t work);

#endif
