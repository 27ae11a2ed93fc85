/* Stream-ordered memory. It belongs to a pool, so it is on the pool's GPU and outlives contexts, and the pool is
 * charged for what it holds. During a capture, an allocation becomes a node of a graph: hook_graph.c. */
#include <stdatomic.h>

#include "cuda/stream.h"
#include "driver/driver.h"
#include "driver/refusal.h"
#include "memory/cache.h"
#include "memory/charge.h"
#include "memory/graph.h"
#include "memory/lingering.h"
#include "memory/pool.h"
#include "session/join.h"
#include "share/share.h"

typedef struct {
    hook_t hook;
    bool per_thread;
    CUmemoryPool pool; /* NULL: the device's current pool */
    CUstream stream;
} request_t;

static CUresult allocate_real(const request_t *request, CUdeviceptr *pointer, size_t bytes) {
    if (request->pool == NULL)
        return (request->per_thread ? REAL(cuMemAllocAsync_ptsz) : REAL(cuMemAllocAsync))(pointer, bytes,
                                                                                          request->stream);
    return (request->per_thread ? REAL(cuMemAllocFromPoolAsync_ptsz)
                                : REAL(cuMemAllocFromPoolAsync))(pointer, bytes, request->pool, request->stream);
}

static CUresult free_real(const request_t *request, CUdeviceptr pointer) {
    return (request->per_thread ? REAL(cuMemFreeAsync_ptsz) : REAL(cuMemFreeAsync))(pointer, request->stream);
}

/* With the lock held. A pool need not grow if it has enough free memory that other calls in progress do not want. */
static bool reserve(cache_t *cache, size_t bytes, attempt_t attempt, uint64_t *reserved_bytes_p) {
    if (cache_reserve(cache, bytes, reserved_bytes_p))
        return true;
    uint64_t taken_bytes = cache->out_bytes + cache->wanted_bytes;
    *reserved_bytes_p = 0;
    return attempt == ATTEMPT_REREAD && cache->charged_bytes >= taken_bytes &&
           cache->charged_bytes - taken_bytes >= bytes;
}

static CUresult attempt_once(const request_t *request, cache_t *cache, attempt_t attempt, CUdeviceptr *pointer,
                             size_t bytes) {
    growth_t growth = {.wanted_bytes = bytes};
    cache_lock(cache->gpu);
    bool fits = reserve(cache, bytes, attempt, &growth.reserved_bytes);
    if (fits)
        cache_begin_growth(cache, &growth);
    cache_unlock(cache->gpu);
    if (!fits)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = allocate_real(request, pointer, bytes);
    cache_lock(cache->gpu);
    bool settled = cache_end_growth(cache, &growth);
    bool recorded = result == CUDA_SUCCESS && settled && pool_record(cache, *pointer, bytes);
    cache_unlock(cache->gpu);
    if (result != CUDA_SUCCESS || recorded)
        return result;
    (void)free_real(request, *pointer);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_from(const request_t *request, cache_t *cache, CUdeviceptr *pointer, size_t bytes) {
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes > share_most_bytes(cache->gpu))
        return charge_refused(cache->gpu, bytes);
    for (attempt_t attempt = ATTEMPT_FIRST; attempt < ATTEMPTS && result == CUDA_ERROR_OUT_OF_MEMORY; attempt++) {
        if (attempt == ATTEMPT_WAITED)
            stream_wait(request->stream, request->per_thread);
        lingering_make_room(cache->gpu, attempt);
        result = attempt_once(request, cache, attempt, pointer, bytes);
    }
    return result == CUDA_ERROR_OUT_OF_MEMORY ? charge_refused(cache->gpu, bytes) : result;
}

static cache_t *cache_of(const request_t *request, const place_t *place, CUdevice device) {
    CUmemoryPool pool = request->pool;
    if (pool == NULL && REAL(cuDeviceGetMemPool)(&pool, device) != CUDA_SUCCESS)
        return NULL;
    cache_t *cache = cache_find(CACHE_POOL, (uint64_t)(uintptr_t)pool);
    /* The device's own pool is always on the device. */
    if (cache == NULL && request->pool == NULL)
        cache = pool_add(pool, CACHE_POOL, place->gpu);
    uint32_t any = CACHE_ANY_GPU;
    if (cache != NULL && cache->kind == CACHE_POOL)
        (void)atomic_compare_exchange_strong(&cache->gpu, &any, place->gpu);
    return cache;
}

static CUresult allocate(const request_t *request, CUdeviceptr *pointer, size_t bytes) {
    place_t place;
    CUdevice device;
    if (!session_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    CUresult result = stream_place(request->stream, &place, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream_is_capturing(request->stream, request->per_thread)) {
        if (place.gpu == SHARE_NO_GPU)
            return CUDA_ERROR_NOT_PERMITTED;
        graph_begin_tracking();
        return allocate_real(request, pointer, bytes);
    }
    cache_t *cache = cache_of(request, &place, device);
    if (cache == NULL)
        return refusal(request->hook, "memory from a pool of unknown origin");
    if (cache->kind == CACHE_FOREIGN)
        return allocate_real(request, pointer, bytes);
    if (cache->kind == CACHE_UNREADABLE)
        return refusal(request->hook, "memory from a pool whose size the driver cannot report (before CUDA 11.3)");
    if (cache->gpu >= share_gpu_count())
        return CUDA_ERROR_NOT_PERMITTED;
    return allocate_from(request, cache, pointer, bytes);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    const request_t request = {.hook = HOOK_cuMemAllocAsync, .stream = stream};
    return allocate(&request, pointer, bytes);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    const request_t request = {.hook = HOOK_cuMemAllocAsync_ptsz, .per_thread = true, .stream = stream};
    return allocate(&request, pointer, bytes);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    const request_t request = {.hook = HOOK_cuMemAllocFromPoolAsync, .pool = pool, .stream = stream};
    return pool != NULL ? allocate(&request, pointer, bytes)
                        : REAL(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    const request_t request = {
        .hook = HOOK_cuMemAllocFromPoolAsync_ptsz, .per_thread = true, .pool = pool, .stream = stream};
    return pool != NULL ? allocate(&request, pointer, bytes)
                        : REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    charge_t charge = charge_begin_free(pointer);
    block_t block = pool_begin_free(pointer);
    return pool_end_free(&block, charge_end_free(&charge, REAL(cuMemFreeAsync)(pointer, stream)));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    charge_t charge = charge_begin_free(pointer);
    block_t block = pool_begin_free(pointer);
    return pool_end_free(&block, charge_end_free(&charge, REAL(cuMemFreeAsync_ptsz)(pointer, stream)));
}
