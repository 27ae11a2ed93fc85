/* Copies, and host memory that a device can reach. They are synchronous: they wait for what was launched before. */
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"
#include "timeline.h"

static CUresult begin(const void *pointer) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && pointer == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        timeline_wait(context->gpu, context->last_mark);
    return result;
}

static void *address(CUdeviceptr pointer) {
    return (void *)(uintptr_t)pointer;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    CUresult result = begin(from);
    if (result == CUDA_SUCCESS)
        memcpy(address(to), from, bytes);
    return result;
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    CUresult result = begin(to);
    if (result == CUDA_SUCCESS)
        memcpy(to, address(from), bytes);
    return result;
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    CUresult result = begin(address(to));
    if (result == CUDA_SUCCESS)
        memmove(address(to), address(from), bytes);
    return result;
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) {
    CUresult result = begin(address(to));
    if (result == CUDA_SUCCESS)
        memset(address(to), value, bytes);
    return result;
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags; /* all host memory is reachable by a simulated device */
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = malloc(bytes);
    return *pointer != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemFreeHost(void *pointer) {
    CUresult result = begin(pointer);
    if (result == CUDA_SUCCESS)
        free(pointer);
    return result;
}
