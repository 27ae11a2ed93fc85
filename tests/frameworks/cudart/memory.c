/* Memory: of devices, the host, pools and other processes; copies and fills. */
#include <string.h>

#include "runtime.h"

static CUdeviceptr address(const void *pointer) {
    return (CUdeviceptr)(uintptr_t)pointer;
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    return RUN(cuMemGetInfo, free_bytes, total_bytes);
}

API cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    *pointer = NULL;
    return bytes == 0 ? cudaSuccess : RUN(cuMemAlloc, (CUdeviceptr *)pointer, bytes);
}

API cudaError_t cudaFree(void *pointer) {
    return RUN(cuMemFree, address(pointer));
}

API cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    return RUN(cuMemAllocAsync, (CUdeviceptr *)pointer, bytes, stream);
}

API cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    return RUN(cuMemFreeAsync, address(pointer), stream);
}

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    return RUN(cuDeviceGetDefaultMemPool, pool, device);
}

API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    return RUN(cuMemPoolGetAttribute, pool, (CUmemPool_attribute)attribute, value);
}

API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    return RUN(cuMemPoolSetAttribute, pool, (CUmemPool_attribute)attribute, value);
}

API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes) {
    return RUN(cuMemPoolTrimTo, pool, keep_bytes);
}

API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access, size_t count) {
    return RUN(cuMemPoolSetAccess, pool, (const CUmemAccessDesc *)access, count);
}

API cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    return RUN(cuMemHostAlloc, pointer, bytes, flags);
}

API cudaError_t cudaFreeHost(void *pointer) {
    return pointer == NULL ? cudaSuccess : RUN(cuMemFreeHost, pointer);
}

API cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    return RUN(cuMemHostRegister, pointer, bytes, flags);
}

API cudaError_t cudaHostUnregister(void *pointer) {
    return RUN(cuMemHostUnregister, pointer);
}

API cudaError_t cudaHostGetDevicePointer(void **pointer, void *host, unsigned flags) {
    return RUN(cuMemHostGetDevicePointer, (CUdeviceptr *)pointer, host, flags);
}

/* Memory unknown to the driver is the program's, which is not an error. */
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *pointer) {
    unsigned type = 0;
    bool managed = false;
    int device = cudaInvalidDeviceId;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *values[] = {&type, &managed, &device};
    cudaError_t error = RUN(cuPointerGetAttributes, 3, attributes, values, address(pointer));
    memset(found, 0, sizeof *found);
    found->device = device;
    found->type = managed                        ? cudaMemoryTypeManaged
                  : type == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
                  : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                                                 : cudaMemoryTypeUnregistered;
    if (type != 0)
        found->devicePointer = (void *)(uintptr_t)pointer;
    if (type != CU_MEMORYTYPE_DEVICE || managed)
        found->hostPointer = (void *)(uintptr_t)pointer;
    return error;
}

/* Addresses identify the kind of memory, so the kind of a copy is not needed. */
API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    (void)kind;
    return RUN(cuMemcpy, address(to), address(from), bytes);
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                cudaStream_t stream) {
    (void)kind;
    return RUN(cuMemcpyAsync, address(to), address(from), bytes, stream);
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                    cudaStream_t stream) {
    (void)to_device;
    (void)from_device;
    return RUN(cuMemcpyAsync, address(to), address(from), bytes, stream);
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    const CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = address(from),
        .srcPitch = from_pitch,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = address(to),
        .dstPitch = to_pitch,
        .WidthInBytes = width,
        .Height = height,
    };
    return RUN(cuMemcpy2DAsync, &copy, stream);
}

API cudaError_t cudaMemset(void *pointer, int value, size_t bytes) {
    return RUN(cuMemsetD8, address(pointer), (unsigned char)value, bytes);
}

API cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
    return RUN(cuMemsetD8Async, address(pointer), (unsigned char)value, bytes, stream);
}

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
    return RUN(cuIpcGetMemHandle, (CUipcMemHandle *)handle, address(pointer));
}

API cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags) {
    CUipcMemHandle same;
    memcpy(&same, &handle, sizeof same);
    return RUN(cuIpcOpenMemHandle, (CUdeviceptr *)pointer, same, flags);
}

API cudaError_t cudaIpcCloseMemHandle(void *pointer) {
    return RUN(cuIpcCloseMemHandle, address(pointer));
}
