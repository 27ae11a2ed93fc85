#include "memory/keeper.h"

#include <pthread.h>

#include "base/contract.h"
#include "base/fork.h"
#include "cuda/capture.h"
#include "driver/driver.h"
#include "share/share.h"

#define MAX_KEEPERS 1024u
/* What pools grow by at most, until their figures show what it really is; and what graphs' memory grows by at least. */
#define LARGEST_UNIT_BYTES (32ull << 20)
#define GRAPHS_UNIT_BYTES (2ull << 20)

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER; /* of making and ending */
static pthread_mutex_t mutexes[MAX_GPUS];                      /* all zeros is a mutex that is free */
static keeper_t keepers[MAX_KEEPERS];
static unsigned high;
static bool loose;

static void keeper_after_fork(void) {
    list_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < MAX_GPUS; i++)
        mutexes[i] = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < high; i++)
        keepers[i] = (keeper_t){.kind = KEEPER_NONE};
    high = 0;
    loose = false;
}
FORK_ON_CHILD(keeper_after_fork)

void keeper_lock(uint32_t gpu) {
    pthread_mutex_lock(&mutexes[gpu]);
}

void keeper_unlock(uint32_t gpu) {
    pthread_mutex_unlock(&mutexes[gpu]);
}

static bool is_pool(keeper_kind_t kind) {
    return kind == KEEPER_POOL || kind == KEEPER_FOREIGN || kind == KEEPER_MUTE;
}

keeper_t *keeper_find(keeper_kind_t kind, uint64_t handle) {
    unsigned count = __atomic_load_n(&high, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++) {
        keeper_kind_t found = __atomic_load_n(&keepers[i].kind, __ATOMIC_ACQUIRE);
        bool same = found == kind || (is_pool(kind) && is_pool(found));
        if (same && keepers[i].handle == handle)
            return &keepers[i];
    }
    return NULL;
}

/* The place is filled in before its kind tells that there is something. */
static keeper_t *place(keeper_kind_t kind, uint64_t handle, uint32_t gpu) {
    for (unsigned i = 0; i < MAX_KEEPERS; i++) {
        if (keepers[i].kind != KEEPER_NONE)
            continue;
        uint64_t unit_bytes = kind == KEEPER_GRAPHS ? GRAPHS_UNIT_BYTES : LARGEST_UNIT_BYTES;
        keepers[i] = (keeper_t){.gpu = gpu, .handle = handle, .unit_bytes = unit_bytes};
        __atomic_store_n(&keepers[i].kind, kind, __ATOMIC_RELEASE);
        if (i >= high)
            __atomic_store_n(&high, i + 1, __ATOMIC_RELEASE);
        return &keepers[i];
    }
    return NULL;
}

keeper_t *keeper_add(keeper_kind_t kind, uint64_t handle, uint32_t gpu) {
    pthread_mutex_lock(&list_mutex);
    keeper_t *keeper = keeper_find(kind, handle);
    if (keeper == NULL)
        keeper = place(kind, handle, gpu);
    pthread_mutex_unlock(&list_mutex);
    return keeper;
}

void keeper_remove(keeper_t *keeper) {
    __atomic_store_n(&keeper->kind, KEEPER_NONE, __ATOMIC_RELEASE);
}

static bool read_bytes(const keeper_t *keeper, uint64_t *bytes_p) {
    if (keeper->kind == KEEPER_POOL)
        return REAL(cuMemPoolGetAttribute)((CUmemoryPool)(uintptr_t)keeper->handle,
                                           CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes_p) == CUDA_SUCCESS;
    return keeper->kind == KEEPER_GRAPHS &&
           REAL(cuDeviceGetGraphMemAttribute)((CUdevice)keeper->handle, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                              bytes_p) == CUDA_SUCCESS;
}

static void trim(const keeper_t *keeper) {
    if (keeper->kind == KEEPER_POOL)
        (void)REAL(cuMemPoolTrimTo)((CUmemoryPool)(uintptr_t)keeper->handle, 0);
    else if (keeper->kind == KEEPER_GRAPHS)
        (void)REAL(cuDeviceGraphMemTrim)((CUdevice)keeper->handle);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit_bytes) {
    return bytes > UINT64_MAX - unit_bytes ? bytes : (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

/* Of a pool: the largest that all its growth was a multiple of, which may be too large. Of graphs, whose growth cannot
 * be taken back but is wanted by the page: the smallest that explains what it grew by. */
static void learn_unit(keeper_t *keeper, uint64_t growth_bytes) {
    uint64_t unit_bytes = keeper->unit_bytes;
    uint64_t divisor_bytes = growth_bytes & -growth_bytes;
    if (keeper->kind == KEEPER_POOL && divisor_bytes < unit_bytes)
        unit_bytes = divisor_bytes;
    while (keeper->kind == KEEPER_GRAPHS && unit_bytes < LARGEST_UNIT_BYTES &&
           round_up(keeper->wanted_bytes, unit_bytes) < growth_bytes)
        unit_bytes *= 2;
    keeper->unit_bytes = unit_bytes;
}

bool keeper_settle(keeper_t *keeper, uint64_t reserved_bytes) {
    uint64_t before_bytes = keeper->charged_bytes;
    uint64_t covered_bytes = before_bytes + reserved_bytes;
    uint64_t bytes;
    keeper->charged_bytes = covered_bytes;
    if (!read_bytes(keeper, &bytes))
        return true; /* it stays charged for all that it may have taken */
    if (keeper->wanted_bytes > 0 && bytes > before_bytes)
        learn_unit(keeper, bytes - before_bytes);
    keeper->wanted_bytes = 0;
    if (keeper->orphaned_bytes > bytes)
        keeper->orphaned_bytes = bytes;
    if (bytes > covered_bytes && !share_try(keeper->gpu, bytes - covered_bytes))
        return false;
    if (bytes < covered_bytes)
        share_refund(keeper->gpu, covered_bytes - bytes);
    keeper->charged_bytes = bytes;
    return true;
}

bool keeper_reserve(keeper_t *keeper, uint64_t bytes, attempt_t attempt, uint64_t *reserved_bytes_p) {
    uint64_t whole_bytes = round_up(bytes, keeper->unit_bytes);
    keeper->wanted_bytes = bytes;
    *reserved_bytes_p = whole_bytes;
    /* What needs nothing more is let be also when the driver's own memory has pushed the share beyond its limit. */
    if (whole_bytes == 0 || share_try(keeper->gpu, whole_bytes))
        return true;
    return attempt >= ATTEMPT_TRIMMED && share_charge(keeper->gpu, whole_bytes);
}

/* True: there was something of this GPU to look at. */
static bool each_of(uint32_t gpu, bool trimming) {
    unsigned count = __atomic_load_n(&high, __ATOMIC_ACQUIRE);
    bool any = false;
    for (unsigned i = 0; i < count; i++) {
        keeper_t *keeper = &keepers[i];
        keeper_kind_t kind = __atomic_load_n(&keeper->kind, __ATOMIC_ACQUIRE);
        if (keeper->gpu != gpu || (kind != KEEPER_POOL && kind != KEEPER_GRAPHS))
            continue;
        if (trimming)
            trim(keeper);
        any = any || keeper->charged_bytes > 0;
        (void)keeper_settle(keeper, 0);
    }
    return any;
}

/* While a stream is being captured nothing is trimmed: it might break the capture. */
void keeper_make_room(uint32_t gpu, attempt_t attempt) {
    keeper_lock(gpu);
    if (attempt != ATTEMPT_AT_ONCE)
        (void)each_of(gpu, attempt >= ATTEMPT_TRIMMED && !capture_any());
}

void keeper_reread(uint32_t gpu) {
    keeper_make_room(gpu, ATTEMPT_REREAD);
    keeper_unlock(gpu);
}

bool keeper_give_back(uint32_t gpu) {
    keeper_lock(gpu);
    bool any = each_of(gpu, !capture_any());
    keeper_unlock(gpu);
    return any;
}

void keeper_loosened(void) {
    __atomic_store_n(&loose, true, __ATOMIC_RELEASE);
}

void keeper_waited(void) {
    if (!__atomic_load_n(&loose, __ATOMIC_ACQUIRE) || !__atomic_exchange_n(&loose, false, __ATOMIC_ACQ_REL))
        return;
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++)
        keeper_reread(gpu);
}
