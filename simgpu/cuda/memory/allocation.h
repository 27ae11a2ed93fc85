/* The allocations of this process by address, from cuMemAlloc and from pools. */
#ifndef SIMGPU_CUDA_ALLOCATION_H
#define SIMGPU_CUDA_ALLOCATION_H

#include "cuda/abi/abi.h"
#include "image/gpus.h"

/* An allocation. It belongs to a context and ends with it, or to a pool. */
typedef struct {
    gpu_t *gpu;
    CUcontext context;
    CUmemoryPool pool;
    size_t bytes;
    int memory; /* descriptor of memory that other processes can map, and the offset in it; -1: private memory */
    uint64_t offset;
    bool managed;
    struct block *block; /* the block it shares with other small allocations: memory.c */
    uint64_t id;         /* unique in this process */
} allocation_t;

/* Map and record an allocation that is already charged. False: the address space is full. */
bool memory_map(const allocation_t *allocation, int map_flags, CUdeviceptr *pointer_p);

/* Find the allocation that begins at this address. False: there is none. */
bool memory_find(CUdeviceptr pointer, allocation_t *found);
/* Find the allocation that contains an address, and where it begins. */
bool memory_find_containing(CUdeviceptr address, CUdeviceptr *start, allocation_t *found);
/* Find an allocation that is not from a pool, and make it shared memory, so that other processes can map it. */
bool memory_share(CUdeviceptr pointer, allocation_t *found);

/* Remove the allocation that begins at this address and unmap it. False: there is none. */
bool memory_remove(CUdeviceptr pointer, allocation_t *removed);

/* Remove and unmap all allocations of a context, and call `removed` with each. */
void memory_remove_context(CUcontext context, void (*removed)(const allocation_t *allocation));

#endif
