#include "memory/pool.h"

#include "base/fork.h"
#include "base/table.h"
#include "driver/driver.h"
#include "memory/doubt.h"
#include "memory/keeper.h"
#include "share/share.h"

static table_t blocks = TABLE_INITIALIZER; /* pointer -> bytes; owner: the keeper */

static void pool_after_fork(void) {
    table_forget(&blocks);
}
FORK_ON_CHILD(pool_after_fork)

keeper_t *pool_remember(CUmemoryPool pool, keeper_kind_t kind, uint32_t gpu) {
    uint64_t bytes;
    if (kind == KEEPER_POOL &&
        REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) != CUDA_SUCCESS)
        kind = KEEPER_MUTE;
    return keeper_add(kind, (uint64_t)(uintptr_t)pool, gpu);
}

bool pool_note(keeper_t *keeper, CUdeviceptr pointer, uint64_t bytes) {
    entry_t block = {.key = pointer, .bytes = bytes, .owner = (uint64_t)(uintptr_t)keeper};
    entry_t old;
    if (!table_put(&blocks, &block, &old))
        return false;
    keeper->out_bytes += bytes;
    keeper->blocks++;
    return true;
}

block_t pool_take(CUdeviceptr pointer) {
    entry_t entry;
    if (!table_take(&blocks, pointer, &entry))
        return (block_t){0};
    return (block_t){.pointer = pointer, .bytes = entry.bytes, .keeper = (keeper_t *)(uintptr_t)entry.owner};
}

/* With the lock held. A pool that was destroyed is there until the last of its blocks is freed, and a free is done when
 * its stream has come to it. What it had then is there until nobody has it any more: the pool cannot be asked. */
static void finish(keeper_t *keeper) {
    if (keeper->kind != KEEPER_ENDING || keeper->blocks > 0)
        return;
    doubt_add(keeper->gpu, keeper->charged_bytes);
    keeper_remove(keeper);
}

CUresult pool_return(const block_t *block, CUresult result) {
    keeper_t *keeper = block->keeper;
    entry_t entry = {.key = block->pointer, .bytes = block->bytes, .owner = (uint64_t)(uintptr_t)keeper};
    entry_t old;
    if (result == CUDA_SUCCESS)
        keeper_loosened(); /* it may also have been a graph's */
    if (keeper == NULL)
        return result;
    if (result != CUDA_SUCCESS) {
        (void)table_put(&blocks, &entry, &old); /* should it fail, it counts as handed out: the safe side */
        return result;
    }
    keeper->out_bytes -= block->bytes;
    keeper->blocks--;
    if (keeper->kind == KEEPER_ENDING) {
        uint32_t gpu = keeper->gpu;
        keeper_lock(gpu);
        finish(keeper);
        keeper_unlock(gpu);
    }
    return result;
}

/* Nobody can ask it any more how much it has: it stays charged for what it had. */
void pool_end(keeper_t *keeper) {
    uint32_t gpu = keeper->gpu;
    keeper_lock(gpu);
    keeper_closed(keeper, KEEPER_ENDING);
    finish(keeper);
    keeper_unlock(gpu);
}
