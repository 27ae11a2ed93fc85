/* Devices: properties and synchronization. */
#include <string.h>

#include "runtime.h"

API cudaError_t cudaGetDeviceCount(int *count) {
    CUresult result = runtime_begin();
    *count = 0;
    return runtime_result(result == CUDA_SUCCESS ? DRIVER(cuDeviceGetCount, count) : result);
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    CUresult result = runtime_begin();
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuDeviceGetAttribute, value, (CUdevice_attribute)attribute, device);
    return runtime_result(result);
}

#define FIELD(field, attribute) {offsetof(struct cudaDeviceProp, field), attribute}

static const struct {
    size_t offset;
    CUdevice_attribute attribute;
} fields[] = {
    FIELD(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
    FIELD(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    FIELD(multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
    FIELD(warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE),
    FIELD(maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
    FIELD(maxThreadsPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
    FIELD(maxBlocksPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR),
    FIELD(maxThreadsDim[0], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
    FIELD(maxThreadsDim[1], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
    FIELD(maxThreadsDim[2], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
    FIELD(maxGridSize[0], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
    FIELD(maxGridSize[1], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
    FIELD(maxGridSize[2], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
    FIELD(regsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
    FIELD(regsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
    FIELD(l2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
    FIELD(memoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
    FIELD(memoryClockRate, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE),
    FIELD(clockRate, CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
    FIELD(pciBusID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
    FIELD(pciDeviceID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
    FIELD(pciDomainID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
    FIELD(asyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
    FIELD(concurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS),
    FIELD(unifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
    FIELD(managedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY),
    FIELD(canMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY),
    FIELD(cooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH),
    FIELD(memoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED),
    FIELD(streamPrioritiesSupported, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED),
    FIELD(ECCEnabled, CU_DEVICE_ATTRIBUTE_ECC_ENABLED),
    FIELD(integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED),
    FIELD(computeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE),
};

/* The same for fields that are sizes. */
static const struct {
    size_t offset;
    CUdevice_attribute attribute;
} sizes[] = {
    FIELD(sharedMemPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
    FIELD(sharedMemPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    FIELD(sharedMemPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    FIELD(reservedSharedMemPerBlock, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
    FIELD(totalConstMem, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
    FIELD(memPitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH),
    FIELD(textureAlignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
};

API cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *properties, int device) {
    int value = 0;
    CUresult result = runtime_begin();
    memset(properties, 0, sizeof *properties);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuDeviceGetName, properties->name, (int)sizeof properties->name, device);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuDeviceGetUuid, (CUuuid *)&properties->uuid, device);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuDeviceTotalMem, &properties->totalGlobalMem, device);
    for (size_t i = 0; i < sizeof fields / sizeof *fields && result == CUDA_SUCCESS; i++) {
        result = DRIVER(cuDeviceGetAttribute, &value, fields[i].attribute, device);
        *(int *)((char *)properties + fields[i].offset) = value;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && result == CUDA_SUCCESS; i++) {
        result = DRIVER(cuDeviceGetAttribute, &value, sizes[i].attribute, device);
        *(size_t *)((char *)properties + sizes[i].offset) = (size_t)value;
    }
    return runtime_result(result);
}

API cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    CUresult result = runtime_begin();
    return runtime_result(result == CUDA_SUCCESS ? DRIVER(cuDeviceGetPCIBusId, id, length, device) : result);
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    CUresult result = runtime_begin();
    return runtime_result(result == CUDA_SUCCESS ? DRIVER(cuDeviceCanAccessPeer, can, device, peer) : result);
}

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    CUcontext context;
    CUresult result = runtime_ready();
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuDevicePrimaryCtxRetain, &context, peer);
    return runtime_result(result == CUDA_SUCCESS ? DRIVER(cuCtxEnablePeerAccess, context, flags) : result);
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    return RUN(cuCtxGetStreamPriorityRange, least, greatest);
}

API cudaError_t cudaDeviceSynchronize(void) {
    return RUN(cuCtxSynchronize);
}

API cudaError_t cudaProfilerStart(void) {
    return cudaSuccess;
}

API cudaError_t cudaProfilerStop(void) {
    return cudaSuccess;
}
