/* Streams, and how to queue work in them. */
#ifndef SIMGPU_CUDA_STREAM_H
#define SIMGPU_CUDA_STREAM_H

#include "cuda/abi/abi.h"
#include "cuda/device/handle.h"
#include "time/timeline.h"

#define LEGACY ((CUstream)1)
#define PER_THREAD ((CUstream)2)
#define NON_BLOCKING 1u

struct CUstream_st {
    handle_head_t head;
    CUcontext context;
    uint64_t context_id;
    _Atomic uint64_t mark; /* its end */
    CUgraph capture;       /* the graph it is captured into; NULL: none */
    CUstream next_joined;  /* next stream in the list of captured ones */
    unsigned flags;
    int priority;
    uint64_t id;
};

static inline bool stream_is_default(CUstream stream) {
    return stream == NULL || stream == LEGACY || stream == PER_THREAD;
}

/* Return where the stream's capture is stored; NULL for a default stream, which cannot be captured. */
CUgraph *stream_capture(CUstream stream);
bool stream_is_capturing(CUstream stream);
/* Translate a handle of the per-thread forms, in which 0 means the thread's default stream, into the ordinary
 * handle. */
static inline CUstream stream_of(CUstream stream, bool per_thread) {
    return stream == NULL && per_thread ? (CUstream)2 : stream;
}
/* Return the stream's context; for a default stream, the current one. */
CUresult stream_context(CUstream stream, CUcontext *context_p);

/* Return the mark of a stream's end. `per_thread`: the handle 0 means the thread's default stream. */
_Atomic uint64_t *stream_end(CUcontext context, CUstream stream, bool per_thread);
order_t stream_order(CUstream stream, bool per_thread);

/* Queue work, with the stream's context and order. Returns the mark of its end. */
uint64_t stream_queue(CUcontext context, CUstream stream, bool per_thread, gpu_work_t work);

#endif
