/* Kernels. Compiler-generated code registers each kernel by its stub's address and its name; the embedded code is
 * passed to the driver unchanged. A kernel is looked up on a device when it is first used there. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

#define FIRST_ROOM (1u << 16)

/* The embedded code of one compiled file. */
typedef struct {
    const void *image;
    CUmodule modules[MAX_DEVICES];
} binary_t;

typedef struct {
    const void *stub; /* NULL: free */
    const char *name;
    binary_t *binary;
    CUfunction *functions; /* by device; NULL: unused so far */
} kernel_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static kernel_t *kernels; /* a hash table with open addressing */
static size_t room, count;

static kernel_t *place_of(kernel_t *table, size_t table_room, const void *stub) {
    size_t at = ((uintptr_t)stub >> 4) * 0x9e3779b97f4a7c15ull % table_room;
    while (table[at].stub != NULL && table[at].stub != stub)
        at = (at + 1) % table_room;
    return &table[at];
}

/* Call it with the lock held. */
static bool make_room(void) {
    if (count * 2 < room)
        return true;
    size_t more = room > 0 ? room * 2 : FIRST_ROOM;
    kernel_t *table = calloc(more, sizeof *table);
    if (table == NULL)
        return false;
    for (size_t i = 0; i < room; i++) {
        if (kernels[i].stub != NULL)
            *place_of(table, more, kernels[i].stub) = kernels[i];
    }
    free(kernels);
    kernels = table;
    room = more;
    return true;
}

API void **__cudaRegisterFatBinary(void *image) {
    binary_t *binary = calloc(1, sizeof *binary);
    if (binary != NULL)
        binary->image = image;
    return (void **)binary;
}

API void __cudaRegisterFatBinaryEnd(void **binary) {
    (void)binary;
}

/* Called when the program ends; the driver may already be gone. */
API void __cudaUnregisterFatBinary(void **binary) {
    (void)binary;
}

API char __cudaInitModule(void **binary) {
    (void)binary;
    return 1;
}

API void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int external, size_t bytes,
                           int constant, int global) {
    (void)binary;
    (void)host;
    (void)device;
    (void)name;
    (void)external;
    (void)bytes;
    (void)constant;
    (void)global;
}

API void __cudaRegisterFunction(void **binary, const char *stub, char *device, const char *name, int limit,
                                void *thread, void *block, void *block_size, void *grid_size, int *warp) {
    (void)device;
    (void)limit;
    (void)thread;
    (void)block;
    (void)block_size;
    (void)grid_size;
    (void)warp;
    pthread_mutex_lock(&mutex);
    kernel_t *kernel = make_room() ? place_of(kernels, room, stub) : NULL;
    if (kernel != NULL && kernel->stub == NULL) {
        *kernel = (kernel_t){.stub = stub, .name = name, .binary = (binary_t *)binary};
        count++;
    }
    pthread_mutex_unlock(&mutex);
}

/* Call it with the lock held. */
static CUresult look_up(kernel_t *kernel, int device) {
    CUresult result = CUDA_SUCCESS;
    CUmodule *module = &kernel->binary->modules[device];
    if (kernel->functions == NULL)
        kernel->functions = calloc(MAX_DEVICES, sizeof *kernel->functions);
    if (kernel->functions == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (*module == NULL)
        result = DRIVER(cuModuleLoadData, module, kernel->binary->image);
    if (result == CUDA_SUCCESS && kernel->functions[device] == NULL)
        result = DRIVER(cuModuleGetFunction, &kernel->functions[device], *module, kernel->name);
    return result;
}

static CUresult function_of(const void *stub, CUfunction *function) {
    CUresult result = runtime_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    kernel_t *kernel = room > 0 ? place_of(kernels, room, stub) : NULL;
    if (kernel == NULL || kernel->stub == NULL || kernel->binary == NULL)
        result = (CUresult)cudaErrorInvalidDeviceFunction;
    else
        result = look_up(kernel, runtime_device());
    if (result == CUDA_SUCCESS)
        *function = kernel->functions[runtime_device()];
    pthread_mutex_unlock(&mutex);
    return result;
}

/* The launch configuration between <<< and >>>, on its way to the stub. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} pushed;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, struct CUstream_st *stream) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared_bytes = shared_bytes;
    pushed.stream = stream;
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_bytes = pushed.shared_bytes;
    *(cudaStream_t *)stream = pushed.stream;
    return cudaSuccess;
}

API cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                                 cudaStream_t stream) {
    CUfunction function;
    CUresult result = function_of(stub, &function);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuLaunchKernel, function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                        (unsigned)shared_bytes, stream, arguments, NULL);
    return runtime_result(result);
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *stub, void **arguments) {
    return cudaLaunchKernel(stub, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                            config->stream);
}

API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *stub) {
    CUfunction function;
    CUresult result = function_of(stub, &function);
    memset(attributes, 0, sizeof *attributes);
    const struct {
        int *value;
        CUfunction_attribute attribute;
    } fields[] = {
        {&attributes->maxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
        {&attributes->numRegs, CU_FUNC_ATTRIBUTE_NUM_REGS},
        {&attributes->ptxVersion, CU_FUNC_ATTRIBUTE_PTX_VERSION},
        {&attributes->binaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION},
        {&attributes->maxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES},
        {&attributes->preferredShmemCarveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields && result == CUDA_SUCCESS; i++)
        result = DRIVER(cuFuncGetAttribute, fields[i].value, fields[i].attribute, function);
    return runtime_result(result);
}

API cudaError_t cudaFuncSetAttribute(const void *stub, enum cudaFuncAttribute attribute, int value) {
    CUfunction function;
    CUresult result = function_of(stub, &function);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuFuncSetAttribute, function, (CUfunction_attribute)attribute, value);
    return runtime_result(result);
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *stub, int threads,
                                                                       size_t shared_bytes, unsigned flags) {
    CUfunction function;
    CUresult result = function_of(stub, &function);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks, function, threads, shared_bytes,
                        flags);
    return runtime_result(result);
}
