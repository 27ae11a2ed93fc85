#include "memory/graph.h"

#include "base/fork.h"
#include "base/table.h"
#include "cuda/capture.h"
#include "cuda/stream.h"
#include "driver/driver.h"
#include "memory/cache.h"
#include "memory/charge.h"
#include "memory/lingering.h"
#include "share/share.h"

#define GPU_SHIFT 56 /* above the bits of an address */

static bool tracking;
static table_t execs = TABLE_INITIALIZER; /* exec and GPU -> bytes; gpu: the device number; count: 1 once launched */

static void graph_after_fork(void) {
    table_clear(&execs);
}
FORK_ON_CHILD(graph_after_fork)

/* A call that may make graph memory grow: a launch or an upload. */
typedef struct {
    CUresult (*real)(CUgraphExec exec, CUstream stream);
    CUgraphExec exec;
    CUstream stream;
    bool per_thread;
} start_t;

static uint64_t key_of(CUgraphExec exec, uint32_t gpu) {
    return (uint64_t)(uintptr_t)exec | (uint64_t)gpu << GPU_SHIFT;
}

/* A start's part on one GPU. */
typedef struct {
    cache_t *cache;
    entry_t entry;
    growth_t growth;
} part_t;

/* With the lock held. The growth is at most this graph's pages, and at most what all graphs need beyond the memory
 * that is there or reserved by starts in progress. */
static bool reserve(part_t *part) {
    const cache_t *cache = part->cache;
    uint64_t bytes = part->entry.bytes;
    uint64_t new_bytes = part->entry.count == 0 ? bytes : 0;
    uint64_t needed_bytes = cache->out_bytes + cache->orphaned_bytes + cache->wanted_bytes + new_bytes;
    uint64_t held_bytes = cache->charged_bytes + cache->reserved_bytes;
    uint64_t growth_bytes = needed_bytes > held_bytes ? needed_bytes - held_bytes : 0;
    part->growth.wanted_bytes = growth_bytes < bytes ? growth_bytes : bytes;
    return cache_reserve(part->cache, part->growth.wanted_bytes, &part->growth.reserved_bytes);
}

/* With the lock held. Another thread may have launched it first. */
static void launched(cache_t *cache, uint64_t key) {
    entry_t entry, old;
    if (!table_get(&execs, key, &entry) || entry.count > 0)
        return;
    entry.count = 1;
    cache->out_bytes += entry.bytes;
    (void)table_put(&execs, &entry, &old); /* the entry exists, so this cannot fail */
}

static void finish(const part_t *part, bool started) {
    cache_lock(part->cache->gpu);
    if (started)
        launched(part->cache, part->entry.key);
    (void)cache_end_growth(part->cache, &part->growth); /* a running graph cannot be undone */
    cache_unlock(part->cache->gpu);
}

/* Returns false if it does not fit. */
static bool begin(part_t *part, attempt_t attempt) {
    lingering_make_room(part->cache->gpu, attempt);
    cache_lock(part->cache->gpu);
    bool fits = reserve(part);
    if (fits)
        cache_begin_growth(part->cache, &part->growth);
    cache_unlock(part->cache->gpu);
    return fits;
}

/* Returns false if it does not fit; then nothing was started. */
static bool attempt_once(const start_t *start, attempt_t attempt, CUresult *result_p) {
    part_t parts[MAX_GPUS];
    unsigned count = 0;
    bool fits = true;
    for (uint32_t gpu = 0; gpu < share_gpu_count() && fits; gpu++) {
        part_t *part = &parts[count];
        *part = (part_t){.cache = NULL};
        if (table_get(&execs, key_of(start->exec, gpu), &part->entry))
            part->cache = cache_find(CACHE_GRAPHS, part->entry.gpu);
        if (part->cache == NULL)
            continue;
        fits = begin(part, attempt);
        count += fits;
    }
    if (fits)
        *result_p = start->real(start->exec, start->stream);
    while (count-- > 0)
        finish(&parts[count], fits && *result_p == CUDA_SUCCESS);
    return fits;
}

/* Returns false if a graph that was never launched needs more than the share's limit. */
static bool may_fit(const start_t *start) {
    entry_t entry;
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        if (table_get(&execs, key_of(start->exec, gpu), &entry) && entry.count == 0 &&
            entry.bytes > share_most_bytes(gpu))
            return false;
    }
    return true;
}

static CUresult refused(const start_t *start) {
    entry_t entry;
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        if (table_get(&execs, key_of(start->exec, gpu), &entry))
            (void)charge_refused(gpu, entry.bytes);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult start_charged(const start_t *start) {
    CUresult result;
    if (capture_any() && stream_is_capturing(start->stream, start->per_thread)) /* the launch becomes a node */
        return start->real(start->exec, start->stream);
    for (attempt_t attempt = ATTEMPT_FIRST; attempt < ATTEMPTS; attempt++) {
        if (attempt == ATTEMPT_RECLAIMED && !may_fit(start))
            break;
        if (attempt == ATTEMPT_WAITED)
            stream_wait(start->stream, start->per_thread);
        if (attempt_once(start, attempt, &result))
            return result;
    }
    return refused(start);
}

static CUresult launch(CUgraphExec exec, CUstream stream) {
    CUresult (*real)(CUgraphExec, CUstream) = driver_function(HOOK_cuGraphLaunch);
    return start_charged(&(start_t){real, exec, stream, false});
}

static CUresult launch_per_thread(CUgraphExec exec, CUstream stream) {
    CUresult (*real)(CUgraphExec, CUstream) = driver_function(HOOK_cuGraphLaunch_ptsz);
    return start_charged(&(start_t){real, exec, stream, true});
}

void graph_begin_tracking(void) {
    if (__atomic_load_n(&tracking, __ATOMIC_ACQUIRE))
        return;
    driver_divert(HOOK_cuGraphLaunch, (void *)launch);
    driver_divert(HOOK_cuGraphLaunch_ptsz, (void *)launch_per_thread);
    __atomic_store_n(&tracking, true, __ATOMIC_RELEASE);
}

bool graph_is_tracking(void) {
    return __atomic_load_n(&tracking, __ATOMIC_ACQUIRE);
}

CUresult graph_start(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream, bool per_thread) {
    const start_t start = {real, exec, stream, per_thread};
    return start_charged(&start);
}

static bool put(const entry_t *entry, uint32_t gpu) {
    entry_t old;
    bool recorded = cache_add(CACHE_GRAPHS, entry->gpu, gpu) != NULL && table_put(&execs, entry, &old);
    cache_refresh(gpu); /* the driver may already have allocated its memory */
    return recorded;
}

bool graph_record(CUgraphExec exec, const footprint_t *footprint) {
    bool recorded = true;
    for (uint32_t gpu = 0; footprint->any && gpu < share_gpu_count() && recorded; gpu++) {
        entry_t entry = {
            .key = key_of(exec, gpu), .bytes = footprint->bytes[gpu], .gpu = (uint32_t)footprint->devices[gpu]};
        recorded = entry.bytes == 0 || put(&entry, gpu);
    }
    return recorded;
}

/* Its last launch may still run, or may have left allocations, so its memory counts until the driver reports less. */
static void orphan(const entry_t *entry, uint32_t gpu) {
    if (entry->count == 0)
        return;
    cache_t *cache = cache_find(CACHE_GRAPHS, entry->gpu);
    cache_lock(gpu);
    cache->out_bytes -= entry->bytes;
    cache->orphaned_bytes += entry->bytes;
    cache_unlock(gpu);
    cache_note_free();
}

void graph_detach(CUgraphExec exec, detached_t *detached) {
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        if (!table_remove(&execs, key_of(exec, gpu), &detached->entries[gpu]))
            detached->entries[gpu].key = 0;
    }
}

void graph_drop(const detached_t *detached) {
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        if (detached->entries[gpu].key != 0)
            orphan(&detached->entries[gpu], gpu);
    }
}

void graph_reattach(CUgraphExec exec, const detached_t *detached) {
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        entry_t entry;
        (void)table_remove(&execs, key_of(exec, gpu), &entry);
        if (detached->entries[gpu].key != 0)
            (void)table_put(&execs, &detached->entries[gpu],
                            &entry); /* cannot fail: it takes the place of the removed entry */
    }
}
