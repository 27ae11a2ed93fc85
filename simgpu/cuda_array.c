/* Arrays: opaque memory for textures. Only that they take memory is simulated. */
#include <stdlib.h>

#include "cuda_driver.h"
#include "slots.h"

struct CUarray_st {
    gpu_t *gpu;
    size_t bytes;
};

static size_t element_bytes(int format) {
    switch (format) {
    case 0x01: /* 8 bits, unsigned and signed */
    case 0x08:
        return 1;
    case 0x02: /* 16 bits, and half precision */
    case 0x09:
    case 0x10:
        return 2;
    case 0x03: /* 32 bits, and single precision */
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 0;
    }
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (array == NULL || descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    size_t rows = descriptor->Height > 0 ? descriptor->Height : 1;
    size_t bytes;
    if (__builtin_mul_overflow(element_bytes(descriptor->Format) * descriptor->NumChannels, descriptor->Width,
                               &bytes) ||
        __builtin_mul_overflow(bytes, rows, &bytes) || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!slots_charge(context->gpu, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *array = malloc(sizeof **array);
    if (*array == NULL) {
        slots_refund(context->gpu, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    **array = (struct CUarray_st){.gpu = context->gpu, .bytes = bytes};
    return CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray array) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (array == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    slots_refund(array->gpu, array->bytes);
    free(array);
    return CUDA_SUCCESS;
}
