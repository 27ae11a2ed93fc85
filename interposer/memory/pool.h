/* Pools, and what they have handed out. */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include "memory/keeper.h"

/* NULL: there are too many to remember another one. */
keeper_t *pool_remember(CUmemoryPool pool, keeper_kind_t kind, uint32_t gpu);

/* A block that has been handed out. With the keeper's lock held. False: no memory to note it in. */
bool pool_note(keeper_t *keeper, CUdeviceptr pointer, uint64_t bytes);

/* Around a real free: the block is taken out, then it is gone, or put back when the free failed. */
typedef struct {
    CUdeviceptr pointer; /* 0: not a block of a pool that is charged */
    uint64_t bytes;
    keeper_t *keeper;
} block_t;
block_t pool_take(CUdeviceptr pointer);
CUresult pool_return(const block_t *block, CUresult result);

/* The pool has been destroyed. */
void pool_end(keeper_t *keeper);

#endif
