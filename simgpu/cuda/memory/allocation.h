/* The allocations of this process by address, whoever made them: cuMemAlloc, or a pool. */
#ifndef SIMGPU_CUDA_ALLOCATION_H
#define SIMGPU_CUDA_ALLOCATION_H

#include "cuda/abi/abi.h"
#include "image/gpus.h"

/* cuda_memory.c: one allocation. It belongs to a context, and ends with it, or to a pool. */
typedef struct {
    gpu_t *gpu;
    CUcontext context;
    CUmemoryPool pool;
    size_t bytes;
    int memory; /* that other processes can map, and where in it; -1: nobody can */
    uint64_t offset;
    bool managed;
    struct block *block; /* that it shares with others: cuda_block.h */
    uint64_t id;         /* no other allocation of this process ever has it */
} allocation_t;

/* Backs and records what has been charged already. False: the address space is full. */
bool memory_map(const allocation_t *allocation, int map_flags, CUdeviceptr *pointer_p);

/* One that begins there. False: there is none. */
bool memory_find(CUdeviceptr pointer, allocation_t *found);
/* The one that an address is in, and where that begins. */
bool memory_around(CUdeviceptr address, CUdeviceptr *start, allocation_t *found);
/* As memory_find, of one that is no pool's: from now on other processes can map it. */
bool memory_share(CUdeviceptr pointer, allocation_t *found);

/* Remove one that begins there and unmap it. False: there is none. */
bool memory_remove(CUdeviceptr pointer, allocation_t *removed);

/* Remove and unmap all allocations of a context, and call `removed` with each. */
void memory_remove_context(CUcontext context, void (*removed)(const allocation_t *allocation));

#endif
