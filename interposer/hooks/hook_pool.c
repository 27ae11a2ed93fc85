/* Memory pools: the GPU of each pool, and its size there. Allocations from pools: hook_async.c. */
#include "cuda/device.h"
#include "driver/driver.h"
#include "memory/cache.h"
#include "memory/pool.h"
#include "session/join.h"
#include "share/share.h"

/* Record a pool that the program has received. A managed pool without a preferred GPU belongs to the GPU that first
 * allocates from it. */
static CUresult given(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location, int type) {
    uint32_t gpu = CACHE_ANY_GPU;
    CUdevice device;
    if (result != CUDA_SUCCESS)
        return result;
    if (!session_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    bool on_device = device_of_location(location, &device);
    if (on_device)
        result = device_gpu(device, &gpu);
    cache_kind_t kind = on_device || type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CACHE_POOL : CACHE_FOREIGN;
    if (result == CUDA_SUCCESS && pool_add(*pool, kind, gpu) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    return result == CUDA_SUCCESS ? given(result, pool, &properties->location, properties->allocType) : result;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    return given(REAL(cuDeviceGetDefaultMemPool)(pool, device), pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    return given(REAL(cuDeviceGetMemPool)(pool, device), pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    return given(REAL(cuMemGetDefaultMemPool)(pool, location, type), pool, location, type);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    return given(REAL(cuMemGetMemPool)(pool, location, type), pool, location, type);
}

/* Its memory is charged to the exporter. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, uint64_t flags) {
    CUresult result = REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
    if (result == CUDA_SUCCESS && pool_add(*pool, CACHE_FOREIGN, CACHE_ANY_GPU) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}

/* A lower release threshold frees memory when the program waits for the next time. */
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    cache_note_free();
    return REAL(cuMemPoolSetAttribute)(pool, attribute, value);
}

static cache_t *charged_cache(CUmemoryPool pool) {
    cache_t *cache = cache_find(CACHE_POOL, (uint64_t)(uintptr_t)pool);
    bool charged = cache != NULL && cache->kind == CACHE_POOL && cache->gpu < share_gpu_count();
    return charged ? cache : NULL;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep_bytes);
    const cache_t *cache = charged_cache(pool);
    if (cache != NULL)
        cache_refresh(cache->gpu);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    cache_t *cache = charged_cache(pool);
    if (cache == NULL) {
        cache = cache_find(CACHE_POOL, (uint64_t)(uintptr_t)pool);
        CUresult result = REAL(cuMemPoolDestroy)(pool);
        if (result == CUDA_SUCCESS && cache != NULL)
            cache_remove(cache);
        return result;
    }
    (void)REAL(cuMemPoolTrimTo)(pool, 0);
    cache_begin_destroy(cache);
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    if (result == CUDA_SUCCESS)
        pool_destroyed(cache);
    else
        cache_end_destroy(cache, CACHE_POOL);
    return result;
}
