#include "memory/pool.h"

#include "base/fork.h"
#include "base/table.h"
#include "driver/driver.h"
#include "memory/cache.h"
#include "memory/lingering.h"
#include "share/share.h"

static table_t blocks = TABLE_INITIALIZER; /* pointer -> bytes; owner: the pool's cache_t */

static void pool_after_fork(void) {
    table_clear(&blocks);
}
FORK_ON_CHILD(pool_after_fork)

cache_t *pool_add(CUmemoryPool pool, cache_kind_t kind, uint32_t gpu) {
    uint64_t bytes;
    if (kind == CACHE_POOL &&
        REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) != CUDA_SUCCESS)
        kind = CACHE_UNREADABLE;
    return cache_add(kind, (uint64_t)(uintptr_t)pool, gpu);
}

bool pool_record(cache_t *cache, CUdeviceptr pointer, uint64_t bytes) {
    entry_t block = {.key = pointer, .bytes = bytes, .owner = (uint64_t)(uintptr_t)cache};
    entry_t old;
    if (!table_put(&blocks, &block, &old))
        return false;
    cache->out_bytes += bytes;
    cache->blocks++;
    return true;
}

block_t pool_begin_free(CUdeviceptr pointer) {
    entry_t entry;
    if (!table_remove(&blocks, pointer, &entry))
        return (block_t){0};
    return (block_t){.pointer = pointer, .bytes = entry.bytes, .cache = (cache_t *)(uintptr_t)entry.owner};
}

/* With the lock held. A destroyed pool lives until its last block is freed, which happens in stream order. Its
 * memory stays charged until the agent finds that it is gone, because the pool cannot be queried. */
static void remove_if_empty(cache_t *cache) {
    if (cache->kind != CACHE_ENDING || cache->blocks > 0)
        return;
    lingering_add(cache->gpu, cache->charged_bytes);
    cache_remove(cache);
}

CUresult pool_end_free(const block_t *block, CUresult result) {
    cache_t *cache = block->cache;
    entry_t entry = {.key = block->pointer, .bytes = block->bytes, .owner = (uint64_t)(uintptr_t)cache};
    entry_t old;
    if (result == CUDA_SUCCESS)
        cache_note_free(); /* the block may also have been a graph's */
    if (cache == NULL)
        return result;
    if (result != CUDA_SUCCESS) {
        (void)table_put(&blocks, &entry, &old); /* if this fails, it counts as handed out: the safe side */
        return result;
    }
    cache->out_bytes -= block->bytes;
    cache->blocks--;
    if (cache->kind == CACHE_ENDING) {
        uint32_t gpu = cache->gpu;
        cache_lock(gpu);
        remove_if_empty(cache);
        cache_unlock(gpu);
    }
    return result;
}

/* It can no longer be queried, so its last charge stays. */
void pool_destroyed(cache_t *cache) {
    uint32_t gpu = cache->gpu;
    cache_lock(gpu);
    cache_end_destroy(cache, CACHE_ENDING);
    remove_if_empty(cache);
    cache_unlock(gpu);
}
