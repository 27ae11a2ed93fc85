/* Memory that belongs to a context: plain, pitched, managed. */
#include "driver/driver.h"
#include "memory/cache.h"
#include "memory/charge.h"
#include "memory/pool.h"
#include "session/join.h"

#define MAX_PADDING 512u /* no GPU so far pads rows to more than this; afterwards the real pitch is charged */

static CUresult begin(place_t *place, uint64_t bytes) {
    return session_join() ? charge_current(place, bytes) : CUDA_ERROR_SYSTEM_NOT_READY;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    place_t place;
    CUresult result = begin(&place, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAlloc_v2)(pointer, bytes);
    return charge_end(&place, result, result == CUDA_SUCCESS ? *pointer : 0, bytes);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes) {
    place_t place;
    CUresult result = begin(&place, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAlloc)(pointer, bytes);
    return charge_end(&place, result, result == CUDA_SUCCESS ? *pointer : 0, bytes);
}

/* Pages move to the GPU when they are used there, and leave when others need the room. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    place_t place;
    CUresult result = begin(&place, bytes);
    place.deferred = true;
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
    return charge_end(&place, result, result == CUDA_SUCCESS ? *pointer : 0, bytes);
}

static uint64_t product(uint64_t left, uint64_t right) {
    uint64_t bytes;
    return __builtin_mul_overflow(left, right, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t estimated_pitch(uint64_t width) {
    return width > UINT64_MAX - MAX_PADDING ? UINT64_MAX : (width + MAX_PADDING - 1) / MAX_PADDING * MAX_PADDING;
}

/* Replace the estimated charge by the real one. If the driver's pitch is larger and does not fit, free the memory. */
static CUresult settle(const place_t *place, CUdeviceptr pointer, uint64_t estimated_bytes, uint64_t bytes) {
    if (bytes > estimated_bytes) {
        CUresult result = charge_begin(place, bytes - estimated_bytes);
        if (result != CUDA_SUCCESS) {
            CUresult freed = REAL(cuMemFree_v2)(pointer);
            /* If it cannot be freed, the estimate stays charged. */
            return freed == CUDA_SUCCESS ? charge_end(place, result, 0, estimated_bytes) : result;
        }
    }
    CUresult result = charge_end(place, CUDA_SUCCESS, pointer, bytes);
    if (result == CUDA_SUCCESS && bytes < estimated_bytes)
        (void)charge_end(place, CUDA_ERROR_OUT_OF_MEMORY, 0, estimated_bytes - bytes);
    return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    place_t place;
    uint64_t estimated_bytes = product(estimated_pitch(width), height);
    CUresult result = begin(&place, estimated_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    if (result != CUDA_SUCCESS)
        return charge_end(&place, result, 0, estimated_bytes);
    return settle(&place, *pointer, estimated_bytes, product(*pitch, height));
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    place_t place;
    uint64_t estimated_bytes = product(estimated_pitch(width), height);
    CUresult result = begin(&place, estimated_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    if (result != CUDA_SUCCESS)
        return charge_end(&place, result, 0, estimated_bytes);
    return settle(&place, *pointer, estimated_bytes, product(*pitch, height));
}

/* A block returns to its pool. The call has waited for all work that used it. */
static CUresult freed(const charge_t *charge, const block_t *block, CUresult result) {
    result = pool_end_free(block, charge_end_free(charge, result));
    if (block->pointer != 0)
        cache_note_sync();
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    charge_t charge = charge_begin_free(pointer);
    block_t block = pool_begin_free(pointer);
    return freed(&charge, &block, REAL(cuMemFree_v2)(pointer));
}

CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    charge_t charge = charge_begin_free(pointer);
    block_t block = pool_begin_free(pointer);
    return freed(&charge, &block, REAL(cuMemFree)(pointer));
}
