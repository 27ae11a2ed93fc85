/* Pools and the blocks that they have handed out. */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include "memory/cache.h"

/* Returns NULL if there are too many pools. */
cache_t *pool_add(CUmemoryPool pool, cache_kind_t kind, uint32_t gpu);

/* Record a block that was handed out, with the cache's lock held. Returns false if there is no memory for the record.
 */
bool pool_record(cache_t *cache, CUdeviceptr pointer, uint64_t bytes);

/* Around a real free: the first removes the record; the second restores it if the free failed. */
typedef struct {
    CUdeviceptr pointer; /* 0: not a block of a charged pool */
    uint64_t bytes;
    cache_t *cache;
} block_t;
block_t pool_begin_free(CUdeviceptr pointer);
CUresult pool_end_free(const block_t *block, CUresult result);

/* Call this after the pool was destroyed. */
void pool_destroyed(cache_t *cache);

#endif
