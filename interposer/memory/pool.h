/* Pools, and what they have handed out. */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include "memory/cache.h"

/* NULL: there are too many to remember another one. */
cache_t *pool_add(CUmemoryPool pool, cache_kind_t kind, uint32_t gpu);

/* A block that has been handed out. With the keeper's lock held. False: no memory to note it in. */
bool pool_record(cache_t *cache, CUdeviceptr pointer, uint64_t bytes);

/* Around a real free: the block is taken out, then it is gone, or put back when the free failed. */
typedef struct {
    CUdeviceptr pointer; /* 0: not a block of a pool that is charged */
    uint64_t bytes;
    cache_t *cache;
} block_t;
block_t pool_begin_free(CUdeviceptr pointer);
CUresult pool_end_free(const block_t *block, CUresult result);

/* The pool has been destroyed. */
void pool_destroyed(cache_t *cache);

#endif
