/* What a stream does on the host, in its order: host functions, waits for words in memory, and whatever was put into
 * the stream behind them. An errand is done by a thread of the driver when all before it in its stream is done. */
#ifndef SIMGPU_CUDA_ERRAND_H
#define SIMGPU_CUDA_ERRAND_H

#include "cuda_driver.h"

/* Where a stream is: its context and the mark of its end, as stream_end gives it. */
typedef struct {
    CUcontext context;
    _Atomic uint64_t *end;
} stream_point_t;

typedef struct {
    bool (*ready)(const void *what); /* NULL: at once */
    void (*act)(void *what);         /* NULL: there is nothing to do but to wait */
    bool after_work;                 /* when the kernels before it have ended */
} errand_kind_t;

/* `what` is copied. Returns its number, which grows; 0: no memory. */
uint64_t errand_queue(const stream_point_t *point, const errand_kind_t *kind, const void *what, size_t bytes);

/* The newest in a stream that is not done; 0: there is none. */
uint64_t errand_last(const _Atomic uint64_t *end);
uint64_t errand_last_of(CUcontext context);
bool errand_done(uint64_t number);
void errand_wait(uint64_t number);
/* Until there is none of this context. */
void errand_wait_context(CUcontext context);

#endif
