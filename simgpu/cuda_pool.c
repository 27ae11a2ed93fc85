/* Stream-ordered allocation. A pool keeps freed memory up to its release threshold and gives the rest back.
 *
 * Allocations and frees take effect at once: the order of the stream is not waited for. */
#include <stdlib.h>

#include "cuda_driver.h"
#include "slots.h"

#define ATTRIBUTE_RELEASE_THRESHOLD 4

struct CUmemPoolHandle_st {
    gpu_t *gpu;
    pthread_mutex_t mutex;
    uint64_t threshold_bytes;
    uint64_t kept_bytes; /* charged to this process, free for the next allocation from this pool */
};

static struct CUmemPoolHandle_st default_pools[IMAGE_MAX_GPUS];

static CUmemoryPool default_pool(gpu_t *gpu) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    CUmemoryPool pool = &default_pools[gpu->index];
    pthread_mutex_lock(&mutex);
    if (pool->gpu == NULL) {
        pthread_mutex_init(&pool->mutex, NULL);
        pool->gpu = gpu;
    }
    pthread_mutex_unlock(&mutex);
    return pool;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result == CUDA_SUCCESS && pool == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *pool = default_pool(gpu);
    return result;
}

/* No other pool can be made a device's current one here. */
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    if (pool == NULL || properties == NULL || properties->location.type != CU_MEM_LOCATION_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    gpu_t *gpu;
    CUresult result = driver_gpu(properties->location.id, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    *pool = calloc(1, sizeof **pool);
    if (*pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&(*pool)->mutex, NULL);
    (*pool)->gpu = gpu;
    return CUDA_SUCCESS;
}

/* The pool itself stays: allocations from it may outlive it, and end later. */
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    if (pool == NULL || (pool >= default_pools && pool < default_pools + IMAGE_MAX_GPUS))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pool->mutex);
    pool->threshold_bytes = 0;
    pthread_mutex_unlock(&pool->mutex);
    return cuMemPoolTrimTo(pool, 0);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pool->mutex);
    if (pool->kept_bytes > keep_bytes) {
        slots_refund(pool->gpu, pool->kept_bytes - keep_bytes);
        pool->kept_bytes = keep_bytes;
    }
    pthread_mutex_unlock(&pool->mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    if (pool == NULL || value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute != ATTRIBUTE_RELEASE_THRESHOLD)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&pool->mutex);
    pool->threshold_bytes = *(uint64_t *)value;
    pthread_mutex_unlock(&pool->mutex);
    return CUDA_SUCCESS;
}

void pool_take_back(CUmemoryPool pool, size_t bytes) {
    pthread_mutex_lock(&pool->mutex);
    uint64_t room_bytes = pool->threshold_bytes > pool->kept_bytes ? pool->threshold_bytes - pool->kept_bytes : 0;
    uint64_t keep_bytes = bytes < room_bytes ? bytes : room_bytes;
    pool->kept_bytes += keep_bytes;
    slots_refund(pool->gpu, bytes - keep_bytes);
    pthread_mutex_unlock(&pool->mutex);
}

static bool pool_charge(CUmemoryPool pool, size_t bytes) {
    pthread_mutex_lock(&pool->mutex);
    uint64_t reused_bytes = bytes < pool->kept_bytes ? bytes : pool->kept_bytes;
    bool granted = slots_charge(pool->gpu, bytes - reused_bytes);
    if (granted)
        pool->kept_bytes -= reused_bytes;
    pthread_mutex_unlock(&pool->mutex);
    return granted;
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    CUcontext context;
    CUresult result = cuStreamGetCtx(stream, &context);
    if (result == CUDA_SUCCESS)
        result = context_usable(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool == NULL)
        pool = default_pool(context->gpu);
    if (!pool_charge(pool, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation_t allocation = {.gpu = pool->gpu, .pool = pool, .bytes = bytes};
    if (memory_map(&allocation, 0, pointer))
        return CUDA_SUCCESS;
    pool_take_back(pool, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate(pointer, bytes, NULL, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate(pointer, bytes, NULL, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return pool != NULL ? allocate(pointer, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    (void)stream;
    return cuMemFree_v2(pointer);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return cuMemFreeAsync(pointer, stream);
}
