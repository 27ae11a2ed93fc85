/* Stream-ordered memory. It belongs to a pool, so it outlives contexts, and it is on the pool's GPU.
 *
 * A pool that keeps freed memory would hold what nobody is charged for, so its release threshold may not be raised. An
 * allocation during stream capture becomes a node of a graph, which takes its memory when the graph runs: refused. */
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "fork.h"
#include "refusal.h"
#include "share.h"
#include "table.h"

#define HOST_POOL (UINT32_MAX - 1) /* its memory is not the GPU's */

static table_t pools = TABLE_INITIALIZER;

void pool_after_fork(void) {
    table_forget(&pools);
}

static CUresult remember(CUresult result, const CUmemoryPool *pool, int location_type, int location_id) {
    entry_t entry = {.gpu = HOST_POOL};
    entry_t old;
    if (result != CUDA_SUCCESS)
        return result;
    if (!share_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (location_type == CU_MEM_LOCATION_TYPE_DEVICE)
        result = device_gpu(location_id, &entry.gpu);
    entry.key = (uint64_t)(uintptr_t)*pool;
    if (result == CUDA_SUCCESS && !table_put(&pools, &entry, &old))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    return result == CUDA_SUCCESS ? remember(result, pool, properties->location.type, properties->location.id) : result;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    return remember(REAL(cuDeviceGetDefaultMemPool)(pool, device), pool, CU_MEM_LOCATION_TYPE_DEVICE, device);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return remember(REAL(cuDeviceGetMemPool)(pool, device), pool, CU_MEM_LOCATION_TYPE_DEVICE, device);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    CUresult result = REAL(cuMemGetDefaultMemPool)(pool, location, type);
    return result == CUDA_SUCCESS ? remember(result, pool, location->type, location->id) : result;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    CUresult result = REAL(cuMemGetMemPool)(pool, location, type);
    return result == CUDA_SUCCESS ? remember(result, pool, location->type, location->id) : result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && value != NULL && *(uint64_t *)value != 0)
        return refusal(HOOK_cuMemPoolSetAttribute, "memory kept by a pool (a release threshold above 0)");
    return REAL(cuMemPoolSetAttribute)(pool, attribute, value);
}

typedef CUresult is_capturing_t(CUstream stream, int *status);

/* The legacy stream cannot be captured, and must not be asked: the question itself would disturb a capture. */
static bool is_capturing(CUstream stream, bool per_thread) {
    int status = 0;
    if (stream == CU_STREAM_LEGACY || (stream == NULL && !per_thread))
        return false;
    is_capturing_t *ask = per_thread ? REAL(cuStreamIsCapturing_ptsz) : REAL(cuStreamIsCapturing);
    return ask(stream, &status) == CUDA_SUCCESS && status != 0;
}

/* The GPU is that of the stream, which may be another than the current one. */
static CUresult place_of_stream(CUstream stream, place_t *place) {
    CUcontext context;
    CUcontext popped;
    CUresult result = charge_place(place);
    CUcontext current = place->context;
    place->context = NULL;
    if (result != CUDA_SUCCESS || stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return result;
    if (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || context == current)
        return CUDA_SUCCESS;
    result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = device_current(&place->gpu);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

static CUresult begin(hook_t hook, CUstream stream, bool per_thread, place_t *place, size_t bytes) {
    CUresult result = place_of_stream(stream, place);
    if (result != CUDA_SUCCESS)
        return result;
    if (is_capturing(stream, per_thread))
        return refusal(hook, "memory allocated by a graph node (an allocation in a stream capture)");
    return charge_begin(place, bytes);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    place_t place;
    CUresult result = begin(HOOK_cuMemAllocAsync, stream, false, &place, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAllocAsync)(pointer, bytes, stream);
    return charge_end(&place, result, result == CUDA_SUCCESS ? *pointer : 0, bytes);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    place_t place;
    CUresult result = begin(HOOK_cuMemAllocAsync_ptsz, stream, true, &place, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAllocAsync_ptsz)(pointer, bytes, stream);
    return charge_end(&place, result, result == CUDA_SUCCESS ? *pointer : 0, bytes);
}

typedef CUresult from_pool_t(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);

static CUresult from_pool(hook_t hook, from_pool_t *real, bool per_thread, CUdeviceptr *pointer, size_t bytes,
                          CUmemoryPool pool, CUstream stream) {
    entry_t entry;
    if (!share_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (is_capturing(stream, per_thread))
        return refusal(hook, "memory allocated by a graph node (an allocation in a stream capture)");
    if (!table_get(&pools, (uint64_t)(uintptr_t)pool, &entry))
        return refusal(hook, "memory from a pool of unknown origin");
    if (entry.gpu == HOST_POOL)
        return real(pointer, bytes, pool, stream);
    place_t place = {.gpu = entry.gpu};
    CUresult result = charge_begin(&place, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = real(pointer, bytes, pool, stream);
    return charge_end(&place, result, result == CUDA_SUCCESS ? *pointer : 0, bytes);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return from_pool(HOOK_cuMemAllocFromPoolAsync, REAL(cuMemAllocFromPoolAsync), false, pointer, bytes, pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return from_pool(HOOK_cuMemAllocFromPoolAsync_ptsz, REAL(cuMemAllocFromPoolAsync_ptsz), true, pointer, bytes, pool,
                     stream);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    charge_t charge = charge_take(pointer);
    return charge_return(&charge, REAL(cuMemFreeAsync)(pointer, stream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    charge_t charge = charge_take(pointer);
    return charge_return(&charge, REAL(cuMemFreeAsync_ptsz)(pointer, stream));
}
