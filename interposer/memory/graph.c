#include "memory/graph.h"

#include "base/fork.h"
#include "base/table.h"
#include "cuda/capture.h"
#include "cuda/stream.h"
#include "driver/driver.h"
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

/* With the lock held. No more than the graph's own pages can be wanting, and no more than all graphs' together beyond
 * what there is. */
static bool reserve(keeper_t *keeper, const entry_t *entry, attempt_t attempt, uint64_t *reserved_bytes_p) {
    uint64_t all_bytes = keeper->out_bytes + keeper->orphaned_bytes + (entry->count == 0 ? entry->bytes : 0);
    uint64_t beyond_bytes = all_bytes > keeper->charged_bytes ? all_bytes - keeper->charged_bytes : 0;
    return keeper_reserve(keeper, beyond_bytes < entry->bytes ? beyond_bytes : entry->bytes, attempt, reserved_bytes_p);
}

/* With the lock held. */
static void launched(keeper_t *keeper, entry_t *entry) {
    entry_t old;
    if (entry->count > 0)
        return;
    entry->count = 1;
    keeper->out_bytes += entry->bytes;
    (void)table_put(&execs, entry, &old); /* it is there */
}

/* GPUs are locked in their order. False: it does not fit, and nothing was started. */
static bool attempt_once(const start_t *start, attempt_t attempt, CUresult *result_p) {
    keeper_t *locked[MAX_GPUS];
    entry_t entries[MAX_GPUS];
    uint64_t reserved_bytes[MAX_GPUS];
    unsigned count = 0;
    bool fits = true;
    for (uint32_t gpu = 0; gpu < share_gpu_count() && fits; gpu++) {
        if (!table_get(&execs, key_of(start->exec, gpu), &entries[count]))
            continue;
        keeper_t *keeper = keeper_find(KEEPER_GRAPHS, entries[count].gpu);
        if (keeper == NULL)
            continue;
        keeper_make_room(gpu, attempt);
        reserved_bytes[count] = 0;
        fits = reserve(keeper, &entries[count], attempt, &reserved_bytes[count]);
        reserved_bytes[count] = fits ? reserved_bytes[count] : 0;
        locked[count++] = keeper;
    }
    if (fits)
        *result_p = start->real(start->exec, start->stream);
    while (count-- > 0) {
        if (fits && *result_p == CUDA_SUCCESS)
            launched(locked[count], &entries[count]);
        (void)keeper_settle(locked[count], reserved_bytes[count]); /* what runs cannot be taken back */
        keeper_unlock(locked[count]->gpu);
    }
    return fits;
}

static CUresult start_charged(const start_t *start) {
    CUresult result;
    if (capture_any() && stream_is_capturing(start->stream, start->per_thread)) /* it becomes a node */
        return start->real(start->exec, start->stream);
    for (attempt_t attempt = ATTEMPT_AT_ONCE; attempt < ATTEMPTS; attempt++) {
        if (attempt == ATTEMPT_WAITED)
            stream_wait(start->stream, start->per_thread);
        if (attempt_once(start, attempt, &result))
            return result;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
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
