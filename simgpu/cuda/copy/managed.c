/* Advice about managed memory, and prefetches of it. All devices share its only copy here, so both have no effect. */
#include <string.h>

#include "cuda/copy/batch.h"
#include "cuda/device/device.h"
#include "cuda/memory/pointer.h"
#include "cuda/stream/stream.h"

#define READ_MOSTLY 1
#define NO_DEVICE (-2)

static CUresult check(CUdeviceptr pointer, size_t bytes) {
    memory_place_t place;
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    bool fine =
        bytes > 0 && pointer_find(pointer, &place) && place.managed && bytes <= place.bytes - (pointer - place.start);
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device) {
    (void)device;
    return advice >= 1 && advice <= 6 ? check(pointer, bytes) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, int advice, CUmemLocation location) {
    (void)location;
    return cuMemAdvise(pointer, bytes, advice, 0);
}

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
    CUcontext context;
    (void)device;
    CUresult result = stream_context(stream, &context);
    return result == CUDA_SUCCESS ? check(pointer, bytes) : result;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags,
                               CUstream stream) {
    return flags == 0 ? cuMemPrefetchAsync(pointer, bytes, location.id, stream) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_batch(const CUdeviceptr *pointers, const size_t *sizes, size_t count, unsigned long long flags,
                            CUstream stream) {
    CUresult result = batch_stream(stream);
    if (pointers == NULL || sizes == NULL || count == 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = check(pointers[i], sizes[i]);
    return result;
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations,
                                 size_t *first, size_t sets, unsigned long long flags, CUstream stream) {
    if (locations == NULL || !batch_indexed(first, sets, count))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sets; i++) {
        gpu_t *gpu;
        CUresult result = locations[i].type == CU_MEM_LOCATION_DEVICE  ? driver_gpu(locations[i].id, &gpu)
                          : locations[i].type > CU_MEM_LOCATION_DEVICE ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_INVALID_VALUE;
        if (result != CUDA_SUCCESS)
            return result;
    }
    return check_batch(pointers, sizes, count, flags, stream);
}

/* Discarded memory has no defined content until it is written again. Here it keeps its content. */
CUresult cuMemDiscardBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count, unsigned long long flags,
                                CUstream stream) {
    return check_batch(pointers, sizes, count, flags, stream);
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations,
                                           size_t *first, size_t sets, unsigned long long flags, CUstream stream) {
    return cuMemPrefetchBatchAsync(pointers, sizes, count, locations, first, sets, flags, stream);
}

/* Advice is not stored: every attribute has its default. */
CUresult cuMemRangeGetAttribute(void *data, size_t size, int attribute, CUdeviceptr pointer, size_t bytes) {
    if (data == NULL || size == 0 || attribute < READ_MOSTLY || attribute > 8)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check(pointer, bytes);
    if (result == CUDA_SUCCESS)
        memset(data, 0, size);
    for (size_t i = 0; result == CUDA_SUCCESS && attribute != READ_MOSTLY && i + sizeof(int) <= size; i += sizeof(int))
        memcpy((char *)data + i, &(int){NO_DEVICE}, sizeof(int));
    return result;
}

CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, int *attributes, size_t count, CUdeviceptr pointer,
                                 size_t bytes) {
    CUresult result =
        data != NULL && sizes != NULL && attributes != NULL && count > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], pointer, bytes);
    return result;
}
