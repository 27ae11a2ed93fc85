/* Fills: of elements of 1, 2 and 4 bytes, in one and two dimensions. */
#include "cuda_copy.h"

static CUresult fill_now(fill_t fill) {
    return fill_allowed(&fill) ? work_now(WORK_FILL, &fill) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fill_in(fill_t fill, CUstream stream) {
    return stream_is_capturing(stream) || fill_allowed(&fill) ? work_in(WORK_FILL, &fill, stream)
                                                              : CUDA_ERROR_INVALID_VALUE;
}

/* Both dimensions, both ways to wait, for elements of one size. */
#define FILLS(bits, type)                                                                                              \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count) {                                          \
        return fill_now((fill_t){to, 0, value, bits / 8, count, 1});                                                   \
    }                                                                                                                  \
    CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream) {                       \
        return fill_in((fill_t){to, 0, value, bits / 8, count, 1}, stream);                                            \
    }                                                                                                                  \
    CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) {           \
        return fill_now((fill_t){to, pitch, value, bits / 8, width, height});                                          \
    }                                                                                                                  \
    CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,           \
                                      CUstream stream) {                                                               \
        return fill_in((fill_t){to, pitch, value, bits / 8, width, height}, stream);                                   \
    }

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
