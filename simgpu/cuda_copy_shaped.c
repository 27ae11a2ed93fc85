/* Copies in two and three dimensions, between memory of the host and of devices. What is in arrays is not simulated. */
#include "cuda_copy.h"

#define ARRAY 3

static bool has_array(int from, int to) {
    return from == ARRAY || to == ARRAY;
}

static side_t side(int type) {
    return type == 1 ? OF_HOST : type == 2 ? OF_DEVICE : ANYWHERE;
}

static CUdeviceptr start(int type, const void *host, CUdeviceptr device) {
    return type == 1 ? (CUdeviceptr)(uintptr_t)host : device; /* a unified address is in the device's field */
}

static CUresult shape_2d(const CUDA_MEMCPY2D *two, copy_t *copy) {
    if (two == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (has_array(two->srcMemoryType, two->dstMemoryType))
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t from_pitch = two->srcPitch != 0 ? two->srcPitch : two->WidthInBytes;
    size_t to_pitch = two->dstPitch != 0 ? two->dstPitch : two->WidthInBytes;
    *copy = (copy_t){
        .to = start(two->dstMemoryType, two->dstHost, two->dstDevice) + two->dstY * to_pitch + two->dstXInBytes,
        .from = start(two->srcMemoryType, two->srcHost, two->srcDevice) + two->srcY * from_pitch + two->srcXInBytes,
        .width = two->WidthInBytes,
        .height = two->Height,
        .depth = 1,
        .to_pitch = to_pitch,
        .from_pitch = from_pitch,
    };
    bool fits = from_pitch >= two->WidthInBytes && to_pitch >= two->WidthInBytes;
    return fits && copy_allowed(copy, side(two->dstMemoryType), side(two->srcMemoryType)) ? CUDA_SUCCESS
                                                                                          : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_shape_3d(const CUDA_MEMCPY3D *three, copy_t *copy) {
    if (three == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (has_array(three->srcMemoryType, three->dstMemoryType))
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t from_pitch = three->srcPitch != 0 ? three->srcPitch : three->WidthInBytes;
    size_t to_pitch = three->dstPitch != 0 ? three->dstPitch : three->WidthInBytes;
    size_t from_slice = from_pitch * (three->srcHeight != 0 ? three->srcHeight : three->Height);
    size_t to_slice = to_pitch * (three->dstHeight != 0 ? three->dstHeight : three->Height);
    *copy = (copy_t){
        .to = start(three->dstMemoryType, three->dstHost, three->dstDevice) + three->dstZ * to_slice +
              three->dstY * to_pitch + three->dstXInBytes,
        .from = start(three->srcMemoryType, three->srcHost, three->srcDevice) + three->srcZ * from_slice +
                three->srcY * from_pitch + three->srcXInBytes,
        .width = three->WidthInBytes,
        .height = three->Height,
        .depth = three->Depth,
        .to_pitch = to_pitch,
        .from_pitch = from_pitch,
        .to_slice = to_slice,
        .from_slice = from_slice,
    };
    bool fits = from_pitch >= three->WidthInBytes && to_pitch >= three->WidthInBytes;
    return fits && copy_allowed(copy, side(three->dstMemoryType), side(three->srcMemoryType))
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *two) {
    copy_t copy;
    CUresult result = shape_2d(two, &copy);
    return result == CUDA_SUCCESS ? work_now(WORK_COPY, &copy) : result;
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *two) {
    return cuMemcpy2D_v2(two);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *two, CUstream stream) {
    copy_t copy;
    CUresult result = shape_2d(two, &copy);
    return result == CUDA_SUCCESS ? work_in(WORK_COPY, &copy, stream) : result;
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *three) {
    copy_t copy;
    CUresult result = copy_shape_3d(three, &copy);
    return result == CUDA_SUCCESS ? work_now(WORK_COPY, &copy) : result;
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *three, CUstream stream) {
    copy_t copy;
    CUresult result = copy_shape_3d(three, &copy);
    return result == CUDA_SUCCESS ? work_in(WORK_COPY, &copy, stream) : result;
}
