#define _GNU_SOURCE
#include "memory/keeper.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/contract.h"
#include "base/fork.h"
#include "cuda/capture.h"
#include "driver/driver.h"
#include "share/share.h"

#define MAX_KEEPERS 1024u
/* What pools grow by at most, until their figures show what it really is; and what graphs' memory grows by at least. */
#define LARGEST_UNIT_BYTES (32ull << 20)
#define GRAPHS_UNIT_BYTES (2ull << 20)

#define CLOSE_LOOK_NS 100000ull

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER; /* of making and ending */
static pthread_mutex_t mutexes[MAX_GPUS];                      /* all zeros is a mutex that is free */
static keeper_t keepers[MAX_KEEPERS];
static _Atomic unsigned high;
static _Atomic bool loose;
static _Atomic uint64_t growths[MAX_GPUS];

static void keeper_after_fork(void) {
    list_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < MAX_GPUS; i++)
        mutexes[i] = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < high; i++)
        keepers[i].kind = KEEPER_NONE;
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
    unsigned count = atomic_load_explicit(&high, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        keeper_kind_t found = atomic_load_explicit(&keepers[i].kind, memory_order_acquire);
        bool same = found == kind || (is_pool(kind) && is_pool(found));
        if (!same || atomic_load_explicit(&keepers[i].handle, memory_order_acquire) != handle)
            continue;
        /* Of one that has ended and is just recreated for this handle, the rest is not there yet. */
        if (atomic_load_explicit(&keepers[i].kind, memory_order_acquire) == found)
            return &keepers[i];
    }
    return NULL;
}

/* The place is filled in before its kind tells that there is something. */
static keeper_t *place(keeper_kind_t kind, uint64_t handle, uint32_t gpu) {
    for (unsigned i = 0; i < MAX_KEEPERS; i++) {
        keeper_t *keeper = &keepers[i];
        if (atomic_load_explicit(&keeper->kind, memory_order_acquire) != KEEPER_NONE)
            continue;
        keeper->gpu = gpu;
        atomic_store_explicit(&keeper->handle, handle, memory_order_release);
        keeper->out_bytes = keeper->blocks = 0;
        keeper->charged_bytes = keeper->orphaned_bytes = keeper->reserved_bytes = keeper->wanted_bytes = 0;
        keeper->unit_bytes = kind == KEEPER_GRAPHS ? GRAPHS_UNIT_BYTES : LARGEST_UNIT_BYTES;
        keeper->calls = keeper->looks = 0;
        keeper->crowded = false;
        atomic_store_explicit(&keeper->kind, kind, memory_order_release);
        if (i >= high)
            atomic_store_explicit(&high, i + 1, memory_order_release);
        return keeper;
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
    atomic_store_explicit(&keeper->kind, KEEPER_NONE, memory_order_release);
}

static bool read_bytes(const keeper_t *keeper, uint64_t *bytes_p) {
    if (keeper->kind == KEEPER_POOL)
        return REAL(cuMemPoolGetAttribute)((CUmemoryPool)(uintptr_t)keeper->handle,
                                           CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes_p) == CUDA_SUCCESS;
    return keeper->kind == KEEPER_GRAPHS &&
           REAL(cuDeviceGetGraphMemAttribute)((CUdevice)keeper->handle, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                              bytes_p) == CUDA_SUCCESS;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit_bytes) {
    return bytes > UINT64_MAX - unit_bytes ? bytes : (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

/* Of a pool: the largest that all its growth was a multiple of, which may be too large. Of graphs, whose growth cannot
 * be taken back but is wanted by the page: the smallest that explains what it grew by. */
static void learn_unit(keeper_t *keeper, uint64_t wanted_bytes, uint64_t growth_bytes) {
    uint64_t unit_bytes = keeper->unit_bytes;
    uint64_t divisor_bytes = growth_bytes & -growth_bytes;
    if (keeper->kind == KEEPER_POOL && divisor_bytes < unit_bytes)
        unit_bytes = divisor_bytes;
    while (keeper->kind == KEEPER_GRAPHS && unit_bytes < LARGEST_UNIT_BYTES &&
           round_up(wanted_bytes, unit_bytes) < growth_bytes)
        unit_bytes *= 2;
    keeper->unit_bytes = unit_bytes;
}

static uint64_t least(uint64_t left, uint64_t right) {
    return left < right ? left : right;
}

static void grows(const keeper_t *keeper) {
    uint32_t gpu = keeper->gpu;
    growths[gpu]++;
}

/* With the lock held: charged for what it has, if `over_bytes` more were charged than its books say, for a call that
 * has ended. Others that are under way may have taken all of what was reserved for them, or nothing yet: it may come to
 * have what it has now and what is reserved for them, and never more than what was charged for it before. */
static bool charge_exactly(keeper_t *keeper, uint64_t over_bytes) {
    uint64_t bytes;
    uint64_t before_bytes = keeper->charged_bytes + over_bytes;
    uint64_t reserved_bytes = keeper->reserved_bytes;
    keeper->charged_bytes = before_bytes;
    if (!read_bytes(keeper, &bytes))
        return true; /* it stays charged for all that it may have taken */
    keeper->orphaned_bytes = least(keeper->orphaned_bytes, bytes);
    if (bytes > before_bytes + reserved_bytes) {
        uint64_t more_bytes = bytes - before_bytes - reserved_bytes;
        grows(keeper);
        if (!share_try(keeper->gpu, more_bytes))
            return false;
        keeper->charged_bytes += more_bytes;
    } else if (bytes < before_bytes) {
        share_refund(keeper->gpu, before_bytes - bytes);
        keeper->charged_bytes = bytes;
    }
    return true;
}

void keeper_begin(keeper_t *keeper, const growth_t *growth) {
    keeper->crowded = keeper->calls++ > 0;
    keeper->reserved_bytes += growth->reserved_bytes;
    keeper->wanted_bytes += growth->wanted_bytes;
    grows(keeper);
}

bool keeper_settle(keeper_t *keeper, const growth_t *growth) {
    uint64_t before_bytes = keeper->charged_bytes;
    uint64_t bytes;
    keeper->reserved_bytes -= growth->reserved_bytes;
    keeper->wanted_bytes -= growth->wanted_bytes;
    grows(keeper);
    if (--keeper->calls == 0 && !keeper->crowded && growth->wanted_bytes > 0 && read_bytes(keeper, &bytes) &&
        bytes > before_bytes)
        learn_unit(keeper, growth->wanted_bytes, bytes - before_bytes);
    return charge_exactly(keeper, growth->reserved_bytes);
}

bool keeper_reserve(keeper_t *keeper, uint64_t bytes, uint64_t *reserved_bytes_p) {
    uint64_t whole_bytes = round_up(bytes, keeper->unit_bytes);
    *reserved_bytes_p = whole_bytes;
    /* What needs nothing more is let be also when the driver's own memory has pushed the share beyond its limit. */
    return whole_bytes == 0 || share_try(keeper->gpu, whole_bytes);
}

/* Without the lock: it may take as long as the driver likes. The pool is not destroyed meanwhile. */
static void trim(keeper_t *keeper, keeper_kind_t kind) {
    keeper->looks++;
    keeper_unlock(keeper->gpu);
    relaxed_t relaxed = capture_relax();
    if (kind == KEEPER_POOL)
        (void)REAL(cuMemPoolTrimTo)((CUmemoryPool)(uintptr_t)keeper->handle, 0);
    else
        (void)REAL(cuDeviceGraphMemTrim)((CUdevice)keeper->handle);
    capture_unrelax(relaxed);
    keeper_lock(keeper->gpu);
    keeper->looks--;
}

/* With the lock held, which is let go of for a trim. True: there was something of this GPU to look at. */
static bool each_of(uint32_t gpu, bool trimming) {
    unsigned count = atomic_load_explicit(&high, memory_order_acquire);
    bool any = false;
    for (unsigned i = 0; i < count; i++) {
        keeper_t *keeper = &keepers[i];
        keeper_kind_t kind = atomic_load_explicit(&keeper->kind, memory_order_acquire);
        if (keeper->gpu != gpu || (kind != KEEPER_POOL && kind != KEEPER_GRAPHS))
            continue;
        any = any || keeper->charged_bytes > 0;
        if (trimming && !capture_any())
            trim(keeper, kind);
        (void)charge_exactly(keeper, 0); /* of one that is closing meanwhile nothing is read */
    }
    return any;
}

/* While a stream is being captured nothing is trimmed: it might break the capture. */
static bool look(uint32_t gpu, bool trimming) {
    keeper_lock(gpu);
    bool any = each_of(gpu, trimming && !capture_any());
    keeper_unlock(gpu);
    return any;
}

void keeper_make_room(uint32_t gpu, attempt_t attempt) {
    if (attempt != ATTEMPT_AT_ONCE)
        (void)look(gpu, attempt >= ATTEMPT_TRIMMED);
    if (attempt >= ATTEMPT_RECLAIMED)
        share_reclaim();
}

void keeper_reread(uint32_t gpu) {
    (void)look(gpu, false);
}

bool keeper_give_back(uint32_t gpu) {
    return look(gpu, true);
}

/* Whoever trims it is in the driver, which would let a destruction wait as well. */
void keeper_close(keeper_t *keeper) {
    uint32_t gpu = keeper->gpu;
    keeper_lock(gpu);
    (void)charge_exactly(keeper, 0);
    keeper->kind = KEEPER_CLOSING;
    while (keeper->looks > 0) {
        keeper_unlock(gpu);
        pause_ns(CLOSE_LOOK_NS);
        keeper_lock(gpu);
    }
    keeper_unlock(gpu);
}

void keeper_closed(keeper_t *keeper, keeper_kind_t kind) {
    atomic_store_explicit(&keeper->kind, kind, memory_order_release);
}

void keeper_loosened(void) {
    atomic_store_explicit(&loose, true, memory_order_release);
}

void keeper_waited(void) {
    if (!atomic_load_explicit(&loose, memory_order_acquire) ||
        !atomic_exchange_explicit(&loose, false, memory_order_acq_rel))
        return;
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++)
        keeper_reread(gpu);
}

uint64_t keeper_growths(uint32_t gpu) {
    return growths[gpu];
}

uint64_t keeper_kept_bytes(uint32_t gpu, uint64_t since) {
    unsigned count = atomic_load_explicit(&high, memory_order_acquire);
    uint64_t kept_bytes = 0;
    keeper_lock(gpu);
    (void)each_of(gpu, false);
    for (unsigned i = 0; i < count; i++) {
        keeper_kind_t kind = atomic_load_explicit(&keepers[i].kind, memory_order_acquire);
        bool asked = (kind == KEEPER_POOL || kind == KEEPER_GRAPHS) && keepers[i].gpu == gpu;
        if (asked && keepers[i].calls == 0)
            kept_bytes += keepers[i].charged_bytes;
    }
    bool same = growths[gpu] == since;
    keeper_unlock(gpu);
    return same ? kept_bytes : 0;
}
