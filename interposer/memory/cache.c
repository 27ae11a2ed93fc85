#define _GNU_SOURCE
#include "memory/cache.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/contract.h"
#include "base/fork.h"
#include "cuda/capture.h"
#include "driver/driver.h"
#include "share/share.h"

#define MAX_CACHES 1024u
/* The unit in which pools grow, until their figures show a smaller one; and the smallest unit for graphs. */
#define MAX_UNIT_BYTES (32ull << 20)
#define GRAPHS_UNIT_BYTES (2ull << 20)

#define DESTROY_POLL_NS 100000ull

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER; /* for creation and removal */
static pthread_mutex_t mutexes[MAX_GPUS];                      /* a zeroed mutex is unlocked */
static cache_t caches[MAX_CACHES];
static _Atomic unsigned high;
static _Atomic bool shrinkable;
static _Atomic uint64_t growths[MAX_GPUS];

static void cache_after_fork(void) {
    list_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < MAX_GPUS; i++)
        mutexes[i] = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < high; i++)
        caches[i].kind = CACHE_NONE;
    high = 0;
    shrinkable = false;
}
FORK_ON_CHILD(cache_after_fork)

void cache_lock(uint32_t gpu) {
    pthread_mutex_lock(&mutexes[gpu]);
}

void cache_unlock(uint32_t gpu) {
    pthread_mutex_unlock(&mutexes[gpu]);
}

static bool is_pool(cache_kind_t kind) {
    return kind == CACHE_POOL || kind == CACHE_FOREIGN || kind == CACHE_UNREADABLE;
}

cache_t *cache_find(cache_kind_t kind, uint64_t handle) {
    unsigned count = atomic_load_explicit(&high, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        cache_kind_t found = atomic_load_explicit(&caches[i].kind, memory_order_acquire);
        bool same = found == kind || (is_pool(kind) && is_pool(found));
        if (!same || atomic_load_explicit(&caches[i].handle, memory_order_acquire) != handle)
            continue;
        /* The entry may be just being reused for this handle, and then its other fields are not set. */
        if (atomic_load_explicit(&caches[i].kind, memory_order_acquire) == found)
            return &caches[i];
    }
    return NULL;
}

/* `kind` is set last, because it makes the entry visible. */
static cache_t *create(cache_kind_t kind, uint64_t handle, uint32_t gpu) {
    for (unsigned i = 0; i < MAX_CACHES; i++) {
        cache_t *cache = &caches[i];
        if (atomic_load_explicit(&cache->kind, memory_order_acquire) != CACHE_NONE)
            continue;
        cache->gpu = gpu;
        atomic_store_explicit(&cache->handle, handle, memory_order_release);
        cache->out_bytes = cache->blocks = 0;
        cache->charged_bytes = cache->orphaned_bytes = cache->reserved_bytes = cache->wanted_bytes = 0;
        cache->unit_bytes = kind == CACHE_GRAPHS ? GRAPHS_UNIT_BYTES : MAX_UNIT_BYTES;
        cache->calls = cache->pollers = 0;
        cache->overlapped = false;
        atomic_store_explicit(&cache->kind, kind, memory_order_release);
        if (i >= high)
            atomic_store_explicit(&high, i + 1, memory_order_release);
        return cache;
    }
    return NULL;
}

cache_t *cache_add(cache_kind_t kind, uint64_t handle, uint32_t gpu) {
    pthread_mutex_lock(&list_mutex);
    cache_t *cache = cache_find(kind, handle);
    if (cache == NULL)
        cache = create(kind, handle, gpu);
    pthread_mutex_unlock(&list_mutex);
    return cache;
}

void cache_remove(cache_t *cache) {
    atomic_store_explicit(&cache->kind, CACHE_NONE, memory_order_release);
}

static bool read_bytes(const cache_t *cache, uint64_t *bytes_p) {
    if (cache->kind == CACHE_POOL)
        return REAL(cuMemPoolGetAttribute)((CUmemoryPool)(uintptr_t)cache->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                           bytes_p) == CUDA_SUCCESS;
    return cache->kind == CACHE_GRAPHS &&
           REAL(cuDeviceGetGraphMemAttribute)((CUdevice)cache->handle, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                              bytes_p) == CUDA_SUCCESS;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit_bytes) {
    return bytes > UINT64_MAX - unit_bytes ? bytes : (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

/* For a pool, the largest power of two that divides all its growth so far, which may be too large. For graphs, whose
 * growth is needed by the page and cannot be undone, the smallest that explains the growth. */
static void learn_unit(cache_t *cache, uint64_t wanted_bytes, uint64_t growth_bytes) {
    uint64_t unit_bytes = cache->unit_bytes;
    uint64_t divisor_bytes = growth_bytes & -growth_bytes;
    if (cache->kind == CACHE_POOL && divisor_bytes < unit_bytes)
        unit_bytes = divisor_bytes;
    while (cache->kind == CACHE_GRAPHS && unit_bytes < MAX_UNIT_BYTES &&
           round_up(wanted_bytes, unit_bytes) < growth_bytes)
        unit_bytes *= 2;
    cache->unit_bytes = unit_bytes;
}

static uint64_t min_u64(uint64_t left, uint64_t right) {
    return left < right ? left : right;
}

static void count_growth(const cache_t *cache) {
    uint32_t gpu = cache->gpu;
    growths[gpu]++;
}

/* With the lock held, after a call has ended: charge the cache for what it holds. `over_bytes` were charged beyond
 * charged_bytes for the call. Calls still in progress may have taken none or all of their reservations, so the cache
 * may grow to what it holds now plus these, but never beyond what was charged before. */
static bool adjust_charge(cache_t *cache, uint64_t over_bytes) {
    uint64_t bytes;
    uint64_t before_bytes = cache->charged_bytes + over_bytes;
    uint64_t reserved_bytes = cache->reserved_bytes;
    cache->charged_bytes = before_bytes;
    if (!read_bytes(cache, &bytes))
        return true; /* everything that it may have taken stays charged */
    cache->orphaned_bytes = min_u64(cache->orphaned_bytes, bytes);
    if (bytes > before_bytes + reserved_bytes) {
        uint64_t more_bytes = bytes - before_bytes - reserved_bytes;
        count_growth(cache);
        if (!share_try_charge(cache->gpu, more_bytes))
            return false;
        cache->charged_bytes += more_bytes;
    } else if (bytes < before_bytes) {
        share_refund(cache->gpu, before_bytes - bytes);
        cache->charged_bytes = bytes;
    }
    return true;
}

void cache_begin_growth(cache_t *cache, const growth_t *growth) {
    cache->overlapped = cache->calls++ > 0;
    cache->reserved_bytes += growth->reserved_bytes;
    cache->wanted_bytes += growth->wanted_bytes;
    count_growth(cache);
}

bool cache_end_growth(cache_t *cache, const growth_t *growth) {
    uint64_t before_bytes = cache->charged_bytes;
    uint64_t bytes;
    cache->reserved_bytes -= growth->reserved_bytes;
    cache->wanted_bytes -= growth->wanted_bytes;
    count_growth(cache);
    if (--cache->calls == 0 && !cache->overlapped && growth->wanted_bytes > 0 && read_bytes(cache, &bytes) &&
        bytes > before_bytes)
        learn_unit(cache, growth->wanted_bytes, bytes - before_bytes);
    return adjust_charge(cache, growth->reserved_bytes);
}

bool cache_reserve(cache_t *cache, uint64_t bytes, uint64_t *reserved_bytes_p) {
    uint64_t whole_bytes = round_up(bytes, cache->unit_bytes);
    *reserved_bytes_p = whole_bytes;
    /* A call that needs no growth is allowed even if the driver's own memory has pushed the share over its limit. */
    return whole_bytes == 0 || share_try_charge(cache->gpu, whole_bytes);
}

/* Releases the lock during the call, which may take long. `pollers` keeps the pool from being destroyed meanwhile. */
static void trim(cache_t *cache, cache_kind_t kind) {
    cache->pollers++;
    cache_unlock(cache->gpu);
    capture_mode_t relaxed = capture_relax();
    if (kind == CACHE_POOL)
        (void)REAL(cuMemPoolTrimTo)((CUmemoryPool)(uintptr_t)cache->handle, 0);
    else
        (void)REAL(cuDeviceGraphMemTrim)((CUdevice)cache->handle);
    capture_restore_mode(relaxed);
    cache_lock(cache->gpu);
    cache->pollers--;
}

/* With the lock held, but released during a trim. Returns whether a cache on this GPU held anything. */
static bool refresh_all(uint32_t gpu, bool trimming) {
    unsigned count = atomic_load_explicit(&high, memory_order_acquire);
    bool any = false;
    for (unsigned i = 0; i < count; i++) {
        cache_t *cache = &caches[i];
        cache_kind_t kind = atomic_load_explicit(&cache->kind, memory_order_acquire);
        if (cache->gpu != gpu || (kind != CACHE_POOL && kind != CACHE_GRAPHS))
            continue;
        any = any || cache->charged_bytes > 0;
        if (trimming && !capture_any())
            trim(cache, kind);
        (void)adjust_charge(cache, 0); /* no-op if it is being destroyed by now */
    }
    return any;
}

/* Nothing is trimmed during a capture, which that could break. */
static bool refresh_or_trim(uint32_t gpu, bool trimming) {
    cache_lock(gpu);
    bool any = refresh_all(gpu, trimming && !capture_any());
    cache_unlock(gpu);
    return any;
}

void cache_make_room(uint32_t gpu, attempt_t attempt) {
    if (attempt != ATTEMPT_FIRST)
        (void)refresh_or_trim(gpu, attempt >= ATTEMPT_TRIMMED);
    if (attempt >= ATTEMPT_RECLAIMED)
        share_reclaim();
}

void cache_refresh(uint32_t gpu) {
    (void)refresh_or_trim(gpu, false);
}

bool cache_trim(uint32_t gpu) {
    return refresh_or_trim(gpu, true);
}

/* Waits for threads that trim the pool. The driver would make its destruction wait for them as well. */
void cache_begin_destroy(cache_t *cache) {
    uint32_t gpu = cache->gpu;
    cache_lock(gpu);
    (void)adjust_charge(cache, 0);
    cache->kind = CACHE_CLOSING;
    while (cache->pollers > 0) {
        cache_unlock(gpu);
        pause_ns(DESTROY_POLL_NS);
        cache_lock(gpu);
    }
    cache_unlock(gpu);
}

void cache_end_destroy(cache_t *cache, cache_kind_t kind) {
    atomic_store_explicit(&cache->kind, kind, memory_order_release);
}

void cache_note_free(void) {
    atomic_store_explicit(&shrinkable, true, memory_order_release);
}

void cache_note_sync(void) {
    if (!atomic_load_explicit(&shrinkable, memory_order_acquire) ||
        !atomic_exchange_explicit(&shrinkable, false, memory_order_acq_rel))
        return;
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++)
        cache_refresh(gpu);
}

uint64_t cache_growth_count(uint32_t gpu) {
    return growths[gpu];
}

uint64_t cache_stable_bytes(uint32_t gpu, uint64_t since) {
    unsigned count = atomic_load_explicit(&high, memory_order_acquire);
    uint64_t kept_bytes = 0;
    cache_lock(gpu);
    (void)refresh_all(gpu, false);
    for (unsigned i = 0; i < count; i++) {
        cache_kind_t kind = atomic_load_explicit(&caches[i].kind, memory_order_acquire);
        bool asked = (kind == CACHE_POOL || kind == CACHE_GRAPHS) && caches[i].gpu == gpu;
        if (asked && caches[i].calls == 0)
            kept_bytes += caches[i].charged_bytes;
    }
    bool same = growths[gpu] == since;
    cache_unlock(gpu);
    return same ? kept_bytes : 0;
}
