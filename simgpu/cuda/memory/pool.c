/* Memory pools for stream-ordered allocation. A pool reserves the GPU's memory in large chunks and keeps freed
 * memory until it is trimmed, or until the program waits for the GPU; then it releases what exceeds its release
 * threshold.
 *
 * Memory that is freed in a stream can be reused at once in that stream, and elsewhere when the stream has reached
 * the free. Only amounts are simulated: pools do not fragment. */
#include "cuda/memory/pool.h"

#include <stdlib.h>

#include "cuda/device/device.h"
#include "state/shared.h"
#include "state/slots.h"
#include "time/timeline.h"

#define CHUNK_BYTES (32ull << 20)

/* For each device one pool of pinned memory and one of managed memory. */
static struct CUmemPoolHandle_st default_pools[2][IMAGE_MAX_GPUS];
static CUmemoryPool current_pools[2][IMAGE_MAX_GPUS];
static CUmemoryPool pools; /* all pools; never freed, since their allocations may outlive them */
static pthread_mutex_t pools_mutex = PTHREAD_MUTEX_INITIALIZER;

static void add_pool(CUmemoryPool pool, gpu_t *gpu, bool managed) {
    pthread_mutex_init(&pool->mutex, NULL);
    pool->gpu = gpu;
    pool->managed = managed;
    pool->memory = -1;
    pool->next = pools;
    pools = pool;
}

static CUmemoryPool default_pool(gpu_t *gpu, bool managed) {
    CUmemoryPool pool = &default_pools[managed][gpu->index];
    pthread_mutex_lock(&pools_mutex);
    if (pool->gpu == NULL)
        add_pool(pool, gpu, managed);
    pthread_mutex_unlock(&pools_mutex);
    return pool;
}

CUmemoryPool pool_current(gpu_t *gpu, bool managed) {
    CUmemoryPool pool = current_pools[managed][gpu->index];
    return pool != NULL && !pool->destroyed ? pool : default_pool(gpu, managed);
}

static CUresult get_pool(CUmemoryPool *pool, CUdevice device, bool managed,
                         CUmemoryPool (*choose)(gpu_t *gpu, bool managed)) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result == CUDA_SUCCESS && pool == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *pool = choose(gpu, managed);
    return result;
}

static CUresult set_pool(CUdevice device, bool managed, CUmemoryPool pool) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result == CUDA_SUCCESS && (pool == NULL || pool->gpu != gpu || pool->imported || pool->managed != managed))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        current_pools[managed][gpu->index] = pool;
    return result;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    return get_pool(pool, device, false, default_pool);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return get_pool(pool, device, false, pool_current);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    return set_pool(device, false, pool);
}

/* Pools of host memory are not simulated, nor pools of managed memory without a location. */
static CUresult check_location(const CUmemLocation *location, int type) {
    if (location == NULL || type < CU_MEM_ALLOCATION_PINNED || type > CU_MEM_ALLOCATION_MANAGED ||
        location->type < (type == CU_MEM_ALLOCATION_PINNED) || location->type > CU_MEM_LOCATION_HOST_NUMA)
        return CUDA_ERROR_INVALID_VALUE;
    return location->type == CU_MEM_LOCATION_DEVICE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    CUresult result = check_location(location, type);
    return result == CUDA_SUCCESS ? get_pool(pool, location->id, type == CU_MEM_ALLOCATION_MANAGED, default_pool)
                                  : result;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    CUresult result = check_location(location, type);
    return result == CUDA_SUCCESS ? get_pool(pool, location->id, type == CU_MEM_ALLOCATION_MANAGED, pool_current)
                                  : result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool) {
    CUresult result = check_location(location, type);
    return result == CUDA_SUCCESS ? set_pool(location->id, type == CU_MEM_ALLOCATION_MANAGED, pool) : result;
}

CUmemoryPool pool_make(gpu_t *gpu, bool managed) {
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pthread_mutex_lock(&pools_mutex);
    add_pool(pool, gpu, managed);
    pthread_mutex_unlock(&pools_mutex);
    return pool;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    if (pool == NULL || properties == NULL || properties->location.type != CU_MEM_LOCATION_DEVICE ||
        (properties->handleTypes & ~CU_MEM_HANDLE_FILE_DESCRIPTOR) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    gpu_t *gpu;
    CUresult result = driver_gpu(properties->location.id, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    int memory = properties->handleTypes != 0 ? shared_make(gpu, 0) : -1;
    if (properties->handleTypes != 0 && memory < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *pool = pool_make(gpu, properties->allocType == CU_MEM_ALLOCATION_MANAGED);
    if (*pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*pool)->memory = memory;
    return CUDA_SUCCESS;
}

/* With the lock held. Drops the frees that streams have reached; returns the bytes of the others. */
static uint64_t pending_bytes(CUmemoryPool pool, const void *except_stream) {
    uint64_t bytes = 0;
    for (pending_t **link = &pool->pending; *link != NULL;) {
        pending_t *pending = *link;
        if (timeline_reached(pending->gpu, pending->mark)) {
            *link = pending->next;
            free(pending);
            continue;
        }
        bytes += pending->stream != except_stream ? pending->bytes : 0;
        link = &pending->next;
    }
    return bytes;
}

static uint64_t round_up_to_chunk(uint64_t bytes) {
    return (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
}

/* With the lock held. */
static void shrink(CUmemoryPool pool, uint64_t keep_bytes) {
    uint64_t needed_bytes = round_up_to_chunk(pool->used_bytes + pending_bytes(pool, NULL));
    if (pool->reserved_bytes <= needed_bytes || pool->reserved_bytes <= keep_bytes)
        return;
    if (needed_bytes < keep_bytes)
        needed_bytes = round_up_to_chunk(keep_bytes);
    slots_refund(pool->gpu, pool->reserved_bytes - needed_bytes);
    pool->reserved_bytes = needed_bytes;
}

void pools_trim(void) {
    pthread_mutex_lock(&pools_mutex);
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        pthread_mutex_lock(&pool->mutex);
        shrink(pool, pool->threshold_bytes);
        pthread_mutex_unlock(&pool->mutex);
    }
    pthread_mutex_unlock(&pools_mutex);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    if (pool == NULL || pool->destroyed || pool == &default_pools[pool->managed][pool->gpu->index])
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pool->mutex);
    pool->destroyed = true;
    pool->threshold_bytes = 0;
    shrink(pool, 0);
    pthread_mutex_unlock(&pool->mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
    if (pool == NULL || pool->destroyed)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pool->mutex);
    shrink(pool, keep_bytes);
    pthread_mutex_unlock(&pool->mutex);
    return CUDA_SUCCESS;
}

/* Before CUDA 11.3 pools have no attributes for their sizes. */
static bool has_attribute(CUmemoryPool pool, int attribute) {
    return attribute <= POOL_RELEASE_THRESHOLD || pool->gpu->image->cuda_version >= 11030;
}

/* The three attributes that control reuse of freed memory across streams. They are stored without effect: memory is
 * always reusable when its stream has reached the free. */
static int *reuse_flag(CUmemoryPool pool, int attribute) {
    return attribute >= POOL_REUSE_FIRST && attribute <= POOL_REUSE_LAST ? &pool->no_reuse[attribute - POOL_REUSE_FIRST]
                                                                         : NULL;
}

static uint64_t *attribute_field(CUmemoryPool pool, int attribute) {
    switch (attribute) {
    case POOL_RELEASE_THRESHOLD:
        return &pool->threshold_bytes;
    case POOL_RESERVED:
        return &pool->reserved_bytes;
    case POOL_RESERVED_HIGH:
        return &pool->reserved_high_bytes;
    case POOL_USED:
        return &pool->used_bytes;
    case POOL_USED_HIGH:
        return &pool->used_high_bytes;
    default:
        return NULL;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    if (pool != NULL && !pool->destroyed && value != NULL && reuse_flag(pool, attribute) != NULL) {
        *(int *)value = !*reuse_flag(pool, attribute);
        return CUDA_SUCCESS;
    }
    if (pool == NULL || pool->destroyed || value == NULL || attribute_field(pool, attribute) == NULL ||
        !has_attribute(pool, attribute))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pool->mutex);
    *(uint64_t *)value = *attribute_field(pool, attribute);
    pthread_mutex_unlock(&pool->mutex);
    return CUDA_SUCCESS;
}

/* Peak values can only be reset to zero. */
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    if (pool != NULL && !pool->destroyed && value != NULL && reuse_flag(pool, attribute) != NULL) {
        *reuse_flag(pool, attribute) = *(int *)value == 0;
        return CUDA_SUCCESS;
    }
    bool resets = attribute == POOL_RESERVED_HIGH || attribute == POOL_USED_HIGH;
    if (pool == NULL || pool->destroyed || value == NULL || (attribute != POOL_RELEASE_THRESHOLD && !resets) ||
        (resets && *(uint64_t *)value != 0))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pool->mutex);
    *attribute_field(pool, attribute) = *(uint64_t *)value;
    pthread_mutex_unlock(&pool->mutex);
    return CUDA_SUCCESS;
}

/* All devices of a process can access its pools. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) {
    bool fine = pool != NULL && !pool->destroyed && access != NULL && count > 0;
    for (size_t i = 0; fine && i < count; i++) {
        gpu_t *gpu;
        fine = access[i].location.type == CU_MEM_LOCATION_DEVICE &&
               driver_gpu(access[i].location.id, &gpu) == CUDA_SUCCESS;
    }
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location) {
    if (flags == NULL || pool == NULL || pool->destroyed || location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = 3; /* read and write */
    return driver_ready();
}

/* Memory of an imported pool counts for the process that exported it. */
void pool_release(const allocation_t *block, const free_point_t *point) {
    CUmemoryPool pool = block->pool;
    uint64_t bytes = block->bytes;
    if (pool->imported)
        return;
    if (block->memory >= 0)
        shared_discard(block->memory, block->offset, bytes);
    pending_t *pending = point != NULL ? malloc(sizeof *pending) : NULL;
    pthread_mutex_lock(&pool->mutex);
    pool->used_bytes -= bytes;
    if (pending != NULL) {
        *pending = (pending_t){pool->pending, point->stream, point->gpu, point->mark, bytes};
        pool->pending = pending;
    }
    if (pool->destroyed)
        shrink(pool, 0);
    pthread_mutex_unlock(&pool->mutex);
}

/* With the lock held. Memory that the stream freed and now reuses is no longer pending. */
static void reuse(CUmemoryPool pool, const void *stream) {
    uint64_t taken_bytes = pool->used_bytes + pending_bytes(pool, NULL);
    uint64_t over_bytes = taken_bytes > pool->reserved_bytes ? taken_bytes - pool->reserved_bytes : 0;
    for (pending_t *pending = pool->pending; pending != NULL && over_bytes > 0; pending = pending->next) {
        uint64_t bytes = pending->bytes < over_bytes ? pending->bytes : over_bytes;
        if (pending->stream != stream)
            continue;
        pending->bytes -= bytes;
        over_bytes -= bytes;
    }
}

static void raise_to(uint64_t *high_bytes, uint64_t bytes) {
    if (*high_bytes < bytes)
        *high_bytes = bytes;
}

bool pool_reserve(CUmemoryPool pool, size_t bytes, const void *stream) {
    pthread_mutex_lock(&pool->mutex);
    uint64_t needed_bytes = pool->used_bytes + pending_bytes(pool, stream) + bytes;
    uint64_t more_bytes =
        needed_bytes > pool->reserved_bytes ? round_up_to_chunk(needed_bytes) - pool->reserved_bytes : 0;
    bool granted = slots_charge(pool->gpu, more_bytes);
    if (granted) {
        pool->reserved_bytes += more_bytes;
        pool->used_bytes += bytes;
        reuse(pool, stream);
        raise_to(&pool->reserved_high_bytes, pool->reserved_bytes);
        raise_to(&pool->used_high_bytes, pool->used_bytes);
    }
    pthread_mutex_unlock(&pool->mutex);
    return granted;
}

bool pool_map(CUmemoryPool pool, size_t bytes, CUdeviceptr *pointer) {
    allocation_t allocation = {
        .gpu = pool->gpu, .pool = pool, .bytes = bytes, .memory = pool->memory, .managed = pool->managed};
    if (pool->memory >= 0) {
        pthread_mutex_lock(&pool->mutex);
        allocation.offset = pool->next_offset;
        pool->next_offset = shared_extend(pool->memory, pool->next_offset, bytes);
        pthread_mutex_unlock(&pool->mutex);
    }
    return memory_map(&allocation, 0, pointer);
}
