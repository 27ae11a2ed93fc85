/* What the parts of the simulated pools know of each other. */
#ifndef SIMGPU_CUDA_POOL_H
#define SIMGPU_CUDA_POOL_H

#include "cuda/memory/allocation.h"

/* Freed in a stream that has not come there yet. */
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
    bool destroyed; /* destroyed: it ends with its last allocation */
    uint64_t threshold_bytes;
    int no_reuse[3];                              /* against each of the ways */
    uint64_t reserved_bytes, reserved_high_bytes; /* what it has of the GPU */
    uint64_t used_bytes, used_high_bytes;         /* what is handed out */
    pending_t *pending;
    int memory;           /* what its blocks are in, for other processes to map; -1: they are each their own */
    uint64_t next_offset; /* of the next block there */
    bool imported;        /* imported: another process holds it of the GPU */
};

/* A pool among the others, in nobody's memory yet; NULL: no memory. */
CUmemoryPool pool_make(gpu_t *gpu, bool managed);

/* The one that a device's allocations come from; of managed memory they name theirs. */
CUmemoryPool pool_current(gpu_t *gpu, bool managed);

/* Amounts that are handed out. False: the GPU has not that much left. */
bool pool_reserve(CUmemoryPool pool, size_t bytes, const void *stream);

/* A block that has been taken: where it is, and in the pool's memory if that is shared. */
bool pool_map(CUmemoryPool pool, size_t bytes, CUdeviceptr *pointer);

/* Where a free was put into a stream; NULL: all that used the memory has ended. */
typedef struct {
    const void *stream;
    gpu_t *gpu;
    uint64_t mark;
} free_point_t;

void pool_release(const allocation_t *block, const free_point_t *point);
/* The program has waited for the GPU: pools give back what is above their thresholds. */
void pools_trim(void);

#endif
