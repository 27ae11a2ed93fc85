/* Attributes and occupancy of kernels. Their code is not read, so all kernels are alike: 32 registers, no local
 * memory. */
#include "cuda/kernel/function.h"

#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/kernel/module.h"

#define REGISTERS 32
#define ATTRIBUTES 16

/* Numbers of CUDA's function and device attributes. */
enum { THREADS, SHARED, CONSTANT, LOCAL, REGISTER_COUNT, PTX, BINARY, CACHE, DYNAMIC, CARVEOUT };
enum { WARP = 10, MULTIPROCESSORS = 16, BLOCK_THREADS = 1, MAX_THREADS = 39, SHARED_BYTES = 81, MAX_BLOCKS = 106 };

static int device_attribute(CUdevice device, int attribute) {
    int value = 0;
    (void)cuDeviceGetAttribute(&value, attribute, device);
    return value;
}

CUresult function_attribute(int *value, int attribute, CUfunction function, CUdevice device) {
    int major = 0, minor = 0;
    CUresult result = cuDeviceComputeCapability(&major, &minor, device);
    if (result != CUDA_SUCCESS)
        return result;
    handle_check(function, HANDLE_FUNCTION);
    if (value == NULL || function == NULL || attribute < 0 || attribute >= ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    const int values[ATTRIBUTES] = {
        [THREADS] = device_attribute(device, BLOCK_THREADS),
        [REGISTER_COUNT] = REGISTERS,
        [PTX] = major * 10 + minor,
        [BINARY] = major * 10 + minor,
        [DYNAMIC] = function->dynamic_bytes,
        [CARVEOUT] = function->carveout,
    };
    *value = values[attribute];
    return CUDA_SUCCESS;
}

CUresult function_set_attribute(CUfunction function, int attribute, int value) {
    handle_check(function, HANDLE_FUNCTION);
    if (function == NULL || attribute < 0 || attribute >= ATTRIBUTES || (attribute < DYNAMIC))
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == DYNAMIC)
        function->dynamic_bytes = value;
    if (attribute == CARVEOUT)
        function->carveout = value;
    return driver_ready();
}

static CUresult current_device(CUdevice *device) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS)
        *device = context->device;
    return result;
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    CUdevice device;
    CUresult result = current_device(&device);
    return result == CUDA_SUCCESS ? function_attribute(value, attribute, function, device) : result;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    return function_set_attribute(function, attribute, value);
}

CUresult cuFuncSetCacheConfig(CUfunction function, int config) {
    return function != NULL && config >= 0 && config <= 3 ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncSetSharedMemConfig(CUfunction function, int config) {
    return function != NULL && config >= 0 && config <= 2 ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
    handle_check(function, HANDLE_FUNCTION);
    if (module == NULL || function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *module = function->module;
    return driver_ready();
}

CUresult cuFuncGetName(const char **name, CUfunction function) {
    handle_check(function, HANDLE_FUNCTION);
    if (name == NULL || function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *name = function->name;
    return driver_ready();
}

CUresult cuFuncIsLoaded(int *state, CUfunction function) {
    if (state == NULL || function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *state = 1;
    return driver_ready();
}

CUresult cuFuncLoad(CUfunction function) {
    return function != NULL ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

/* The blocks that fit into a multiprocessor's threads, blocks and shared memory. */
static int active_blocks(CUdevice device, int block_threads, size_t shared_bytes) {
    int warp = device_attribute(device, WARP);
    int threads = (block_threads + warp - 1) / warp * warp;
    int blocks = device_attribute(device, MAX_THREADS) / threads;
    if (blocks > device_attribute(device, MAX_BLOCKS))
        blocks = device_attribute(device, MAX_BLOCKS);
    if (shared_bytes > 0 && (size_t)blocks > (size_t)device_attribute(device, SHARED_BYTES) / shared_bytes)
        blocks = (int)((size_t)device_attribute(device, SHARED_BYTES) / shared_bytes);
    return blocks;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_threads,
                                                              size_t shared_bytes, unsigned flags) {
    CUdevice device;
    CUresult result = current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    handle_check(function, HANDLE_FUNCTION);
    if (blocks == NULL || function == NULL || block_threads < 1 ||
        block_threads > device_attribute(device, BLOCK_THREADS) || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = active_blocks(device, block_threads, shared_bytes);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_threads,
                                                     size_t shared_bytes) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_threads, shared_bytes, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                   size_t (*shared_bytes_of)(int), size_t shared_bytes, int limit,
                                                   unsigned flags) {
    CUdevice device;
    int blocks;
    CUresult result = current_device(&device);
    if (result != CUDA_SUCCESS || grid == NULL || block == NULL || limit < 0)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    int max_threads = device_attribute(device, BLOCK_THREADS);
    int size = limit > 0 && limit < max_threads ? limit : max_threads;
    size_t bytes = shared_bytes_of != NULL ? shared_bytes_of(size) : shared_bytes;
    result = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, size, bytes, flags);
    if (result != CUDA_SUCCESS)
        return result;
    *block = size;
    *grid = blocks * device_attribute(device, MULTIPROCESSORS);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, size_t (*shared_bytes_of)(int),
                                          size_t shared_bytes, int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_bytes_of, shared_bytes, limit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int block_threads) {
    CUdevice device;
    CUresult result = current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes == NULL || function == NULL || blocks < 1 || block_threads < 1)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = (size_t)device_attribute(device, SHARED_BYTES) / (unsigned)blocks;
    return CUDA_SUCCESS;
}
