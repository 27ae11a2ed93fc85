#include "memory/graph.h"

#include "base/fork.h"
#include "base/table.h"
#include "cuda/capture.h"
#include "cuda/stream.h"
#include "driver/driver.h"
#include "memory/charge.h"
#include "memory/doubt.h"
#include "memory/keeper.h"
#include "share/share.h"

#define GPU_SHIFT 56 /* no address has bits there */

static bool allocating;
static table_t execs = TABLE_INITIALIZER; /* exec and GPU -> bytes; gpu: the device; count: launched */

static void graph_after_fork(void) {
    table_forget(&execs);
}
FORK_ON_CHILD(graph_after_fork)

/* Something that may make graphs' memory grow: a launch, an upload. */
typedef struct {
    CUresult (*real)(CUgraphExec exec, CUstream stream);
    CUgraphExec exec;
    CUstream stream;
    bool per_thread;
} start_t;

static uint64_t key_of(CUgraphExec exec, uint32_t gpu) {
    return (uint64_t)(uintptr_t)exec | (uint64_t)gpu << GPU_SHIFT;
}

/* A start on one GPU. */
typedef struct {
    keeper_t *keeper;
    entry_t entry;
    growth_t growth;
} part_t;

/* With the lock held. No more than the graph's own pages can be wanting, and no more than all graphs' together beyond
 * what there is, or will be when the starts that are under way are done. */
static bool reserve(part_t *part) {
    const keeper_t *keeper = part->keeper;
    uint64_t bytes = part->entry.bytes;
    uint64_t new_bytes = part->entry.count == 0 ? bytes : 0;
    uint64_t all_bytes = keeper->out_bytes + keeper->orphaned_bytes + keeper->wanted_bytes + new_bytes;
    uint64_t there_bytes = keeper->charged_bytes + keeper->reserved_bytes;
    uint64_t beyond_bytes = all_bytes > there_bytes ? all_bytes - there_bytes : 0;
    part->growth.wanted_bytes = beyond_bytes < bytes ? beyond_bytes : bytes;
    return keeper_reserve(part->keeper, part->growth.wanted_bytes, &part->growth.reserved_bytes);
}

/* With the lock held. Another thread may have launched it meanwhile. */
static void launched(keeper_t *keeper, uint64_t key) {
    entry_t entry, old;
    if (!table_get(&execs, key, &entry) || entry.count > 0)
        return;
    entry.count = 1;
    keeper->out_bytes += entry.bytes;
    (void)table_put(&execs, &entry, &old); /* it is there */
}

static void finish(const part_t *part, bool started) {
    keeper_lock(part->keeper->gpu);
    if (started)
        launched(part->keeper, part->entry.key);
    (void)keeper_settle(part->keeper, &part->growth); /* what runs cannot be taken back */
    keeper_unlock(part->keeper->gpu);
}

/* False: it does not fit. */
static bool begin(part_t *part, attempt_t attempt) {
    doubt_make_room(part->keeper->gpu, attempt);
    keeper_lock(part->keeper->gpu);
    bool fits = reserve(part);
    if (fits)
        keeper_begin(part->keeper, &part->growth);
    keeper_unlock(part->keeper->gpu);
    return fits;
}

/* False: it does not fit, and nothing was started. */
static bool attempt_once(const start_t *start, attempt_t attempt, CUresult *result_p) {
    part_t parts[MAX_GPUS];
    unsigned count = 0;
    bool fits = true;
    for (uint32_t gpu = 0; gpu < share_gpu_count() && fits; gpu++) {
        part_t *part = &parts[count];
        *part = (part_t){.keeper = NULL};
        if (table_get(&execs, key_of(start->exec, gpu), &part->entry))
            part->keeper = keeper_find(KEEPER_GRAPHS, part->entry.gpu);
        if (part->keeper == NULL)
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

/* False: a graph that was never launched wants more than the share may have, whatever is given back. */
static bool may_fit(const start_t *start) {
    entry_t entry;
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        if (table_get(&execs, key_of(start->exec, gpu), &entry) && entry.count == 0 &&
            entry.bytes > share_limit_bytes(gpu))
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
    if (capture_any() && stream_is_capturing(start->stream, start->per_thread)) /* it becomes a node */
        return start->real(start->exec, start->stream);
    for (attempt_t attempt = ATTEMPT_AT_ONCE; attempt < ATTEMPTS; attempt++) {
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

void graph_allocates(void) {
    if (__atomic_load_n(&allocating, __ATOMIC_ACQUIRE))
        return;
    driver_divert(HOOK_cuGraphLaunch, (void *)launch);
    driver_divert(HOOK_cuGraphLaunch_ptsz, (void *)launch_per_thread);
    __atomic_store_n(&allocating, true, __ATOMIC_RELEASE);
}

bool graph_any(void) {
    return __atomic_load_n(&allocating, __ATOMIC_ACQUIRE);
}

CUresult graph_start(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream, bool per_thread) {
    const start_t start = {real, exec, stream, per_thread};
    return start_charged(&start);
}

static bool put(const entry_t *entry, uint32_t gpu) {
    entry_t old;
    bool noted = keeper_add(KEEPER_GRAPHS, entry->gpu, gpu) != NULL && table_put(&execs, entry, &old);
    keeper_reread(gpu); /* the driver may have seen to its memory already */
    return noted;
}

bool graph_note(CUgraphExec exec, const footprint_t *footprint) {
    bool noted = true;
    for (uint32_t gpu = 0; footprint->any && gpu < share_gpu_count() && noted; gpu++) {
        entry_t entry = {
            .key = key_of(exec, gpu), .bytes = footprint->bytes[gpu], .gpu = (uint32_t)footprint->devices[gpu]};
        noted = entry.bytes == 0 || put(&entry, gpu);
    }
    return noted;
}

/* What it was started with may be running still, or be what it left unfreed: it has that until the driver says that
 * there is less. */
static void ended(const entry_t *entry, uint32_t gpu) {
    if (entry->count == 0)
        return;
    keeper_t *keeper = keeper_find(KEEPER_GRAPHS, entry->gpu);
    keeper_lock(gpu);
    keeper->out_bytes -= entry->bytes;
    keeper->orphaned_bytes += entry->bytes;
    keeper_unlock(gpu);
    keeper_loosened();
}

void graph_set_aside(CUgraphExec exec, aside_t *aside) {
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        if (!table_take(&execs, key_of(exec, gpu), &aside->entries[gpu]))
            aside->entries[gpu].key = 0;
    }
}

void graph_drop(const aside_t *aside) {
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        if (aside->entries[gpu].key != 0)
            ended(&aside->entries[gpu], gpu);
    }
}

void graph_restore(CUgraphExec exec, const aside_t *aside) {
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        entry_t entry;
        (void)table_take(&execs, key_of(exec, gpu), &entry);
        if (aside->entries[gpu].key != 0)
            (void)table_put(&execs, &aside->entries[gpu], &entry); /* there is room: it was there */
    }
}
