/* What the parts of the simulated driver know of each other. */
#ifndef SIMGPU_CUDA_DRIVER_H
#define SIMGPU_CUDA_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda_abi.h"
#include "gpus.h"

#define MAX_CONTEXTS 64u
#define QUEUE_DEPTH 1024u /* launches that a context takes before the next one waits */

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
    _Atomic uint64_t launches;
    _Atomic uint64_t ends_ns[QUEUE_DEPTH]; /* of the last launches, by their number */
    _Atomic unsigned captures;             /* streams that are being captured now */
};

/* cuda_device.c: SUCCESS after cuInit, in the process that called it. */
CUresult driver_ready(void);
CUresult driver_gpu(CUdevice device, gpu_t **gpu_p);

/* cuda_visible.c: which devices there are for this process. A GPU in MIG mode is none, its MIG devices are. */
unsigned visible_devices(gpu_t *gpus, unsigned present, gpu_t **devices);
const image_part_t *visible_part(const gpu_t *gpu);
const image_instance_t *visible_instance(const gpu_t *gpu);

/* cuda_context.c: the calling thread's context, on a GPU that still works. */
CUresult context_current(CUcontext *context_p);
CUresult context_usable(CUcontext context);

/* cuda_mps.c: whether the GPU's compute mode lets this process in, be it as a client of MPS. */
bool mps_admits(const gpu_t *gpu);
/* What MPS lets this process hold on a device; 0: no limit. */
uint64_t mps_limit_bytes(CUdevice device);

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

/* cuda_kernel.c */
CUresult kernel_launch(CUfunction function, CUstream stream, bool per_thread);
uint64_t kernel_duration_ns(CUfunction function);

/* cuda_launch.c: into the stream, or into the graph that it is being captured to. */
CUresult launch_submit(CUcontext context, CUstream stream, bool per_thread, uint64_t duration_ns);

/* cuda_graph.c */
void graph_append(CUgraph graph, uint64_t duration_ns);

/* cuda_stream.c: where the graph is that a stream is being captured to; NULL for a default stream, which cannot be. */
CUgraph *stream_capture(CUstream stream);

/* `per_thread`: what the handle 0 means. */
_Atomic uint64_t *stream_end(CUcontext context, CUstream stream, bool per_thread);
void stream_extend(CUcontext context, _Atomic uint64_t *stream, uint64_t end_ns);

#endif
