/* What the parts of the simulated driver know of each other. */
#ifndef SIMGPU_CUDA_DRIVER_H
#define SIMGPU_CUDA_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda_abi.h"
#include "gpus.h"

#define MAX_CONTEXTS 64u

struct CUctx_st {
    bool alive;
    bool primary;
    unsigned references; /* of a primary context */
    unsigned flags;
    unsigned number; /* in the table of contexts */
    CUdevice device;
    gpu_t *gpu;
    _Atomic uint64_t last_end_ns;   /* when everything launched in it will have ended */
    _Atomic uint64_t legacy_end_ns; /* the same for its default stream */
};

/* cuda_device.c: SUCCESS after cuInit, in the process that called it. */
CUresult driver_ready(void);
CUresult driver_gpu(CUdevice device, gpu_t **gpu_p);

/* cuda_context.c: the calling thread's context, on a GPU that still works. */
CUresult context_current(CUcontext *context_p);
CUresult context_usable(CUcontext context);

/* cuda_memory.c: one allocation. It belongs to a context, and ends with it, or to a pool. */
typedef struct {
    gpu_t *gpu;
    CUcontext context;
    CUmemoryPool pool;
    size_t bytes;
} allocation_t;

/* Backs and records what has been charged already. False: the address space is full. */
bool memory_map(const allocation_t *allocation, int map_flags, CUdeviceptr *pointer_p);
CUresult memory_free(CUdeviceptr pointer);
void memory_free_context(CUcontext context);

/* cuda_pool.c */
void pool_take_back(CUmemoryPool pool, size_t bytes);

/* cuda_stream.c: `per_thread`: what the handle 0 means. */
_Atomic uint64_t *stream_end(CUcontext context, CUstream stream, bool per_thread);
void stream_extend(CUcontext context, _Atomic uint64_t *stream, uint64_t end_ns);

#endif
