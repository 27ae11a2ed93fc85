/* Advice about managed memory, and moves of it. It is in one place for all here, so that advice changes nothing. */
#include <string.h>

#include "cuda_driver.h"

#define READ_MOSTLY 1
#define NO_DEVICE (-2)

static CUresult check(CUdeviceptr pointer, size_t bytes) {
    place_t place;
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    bool fine =
        bytes > 0 && pointer_place(pointer, &place) && place.managed && bytes <= place.bytes - (pointer - place.start);
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

/* No advice is remembered: every attribute is as without. */
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
