/* Memory pools for stream-ordered allocation. */
#ifndef SIMGPU_CUDA_POOL_H
#define SIMGPU_CUDA_POOL_H

#include "cuda/memory/allocation.h"

/* Memory freed in a stream that has not reached the free yet. */
typedef struct pending {
    struct pending *next;
    const void *stream;
    gpu_t *gpu;
    uint64_t mark;
    uint64_t bytes;
} pending_t;

struct CUmemPoolHandle_st {
    CUmemoryPool next;
    gpu_t *gpu;
    pthread_mutex_t mutex;
    bool managed;
    bool destroyed; /* by cuMemPoolDestroy; its allocations may still exist */
    uint64_t threshold_bytes;
    int no_reuse[3];                              /* 1: this way of reuse is disabled */
    uint64_t reserved_bytes, reserved_high_bytes; /* memory charged to the GPU */
    uint64_t used_bytes, used_high_bytes;         /* memory in allocations */
    pending_t *pending;
    int memory; /* shared memory for all allocations, for other processes to map; -1: each has private memory */
    uint64_t next_offset; /* where the next allocation in `memory` begins */
    bool imported;        /* its memory counts for another process */
};

/* Create a pool without shared memory. NULL: no memory. */
CUmemoryPool pool_make(gpu_t *gpu, bool managed);

/* Return the pool that the device's allocations use if they name none. */
CUmemoryPool pool_current(gpu_t *gpu, bool managed);

/* Charge an allocation in a stream to the pool. False: the GPU has too little memory left. */
bool pool_reserve(CUmemoryPool pool, size_t bytes, const void *stream);

/* Map an allocation that has been charged, in the pool's shared memory if it has any. */
bool pool_map(CUmemoryPool pool, size_t bytes, CUdeviceptr *pointer);

/* The point in a stream at which memory is freed; NULL: all work that used it has ended. */
typedef struct {
    const void *stream;
    gpu_t *gpu;
    uint64_t mark;
} free_point_t;

/* Return an allocation to its pool. */
void pool_release(const allocation_t *block, const free_point_t *point);
/* Release what exceeds the pools' thresholds, after the program has waited for the GPU. */
void pools_trim(void);

#endif
