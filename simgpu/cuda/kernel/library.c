/* Libraries, which are modules without a context whose kernels run in any context; and the linker. */
#include <stdlib.h>
#include <unistd.h>

#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/kernel/function.h"
#include "cuda/kernel/module.h"

static CUmodule module_of(CUlibrary library) {
    return (CUmodule)library;
}

static CUfunction function_of(CUkernel kernel) {
    return (CUfunction)kernel;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options, void **jit_values,
                           unsigned jit_count, int *options, void **values, unsigned count) {
    (void)jit_options; /* they are for the compiler */
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS && (library == NULL || code == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    *library = (CUlibrary)module_make(NULL);
    return *library != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit_options, void **jit_values,
                               unsigned jit_count, int *options, void **values, unsigned count) {
    if (path == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (access(path, R_OK) != 0)
        return CUDA_ERROR_FILE_NOT_FOUND;
    return cuLibraryLoadData(library, path, jit_options, jit_values, jit_count, options, values, count);
}

CUresult cuLibraryUnload(CUlibrary library) {
    handle_check(library, HANDLE_MODULE);
    if (library == NULL || module_of(library)->context != NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    module_end(module_of(library));
    return driver_ready();
}

/* The description of the first device says which kernels exist. */
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    gpu_t *gpu;
    CUresult result = driver_gpu(0, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    handle_check(library, HANDLE_MODULE);
    if (kernel == NULL || library == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return module_function((CUfunction *)kernel, module_of(library), name, gpu);
}

CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) {
    return cuModuleGetFunctionCount(count, module_of(library));
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
    return cuModuleEnumerateFunctions((CUfunction *)kernels, count, module_of(library));
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && (module == NULL || library == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *module = module_of(library);
    return result;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name) {
    return cuModuleGetGlobal_v2(pointer, bytes, module_of(library), name);
}

CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name) {
    return cuModuleGetGlobal_v2(pointer, bytes, module_of(library), name);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUcontext context;
    CUresult result = context_current(&context);
    handle_check(kernel, HANDLE_FUNCTION);
    if (result == CUDA_SUCCESS && (function == NULL || kernel == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *function = function_of(kernel);
    return result;
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
    return cuFuncGetModule((CUmodule *)library, function_of(kernel));
}

CUresult cuKernelGetName(const char **name, CUkernel kernel) {
    return cuFuncGetName(name, function_of(kernel));
}

CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device) {
    return function_attribute(value, attribute, function_of(kernel), device);
}

CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    return result == CUDA_SUCCESS ? function_set_attribute(function_of(kernel), attribute, value) : result;
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    return result == CUDA_SUCCESS ? cuFuncSetCacheConfig(function_of(kernel), config) : result;
}

/* The driver's linker turns code into an image. The content of images does not matter here, so the input does not
 * either. */

struct CUlinkState_st {
    char image[16];
    bool complete;
};

CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, CUlinkState *state) {
    CUcontext context;
    (void)count;
    (void)options; /* they are for the compiler */
    (void)values;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && state == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    *state = malloc(sizeof **state);
    if (*state == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    **state = (struct CUlinkState_st){.image = "simgpu"};
    return CUDA_SUCCESS;
}

CUresult cuLinkCreate(unsigned count, int *options, void **values, CUlinkState *state) {
    return cuLinkCreate_v2(count, options, values, state);
}

CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t bytes, const char *name, unsigned count,
                          int *options, void **values) {
    (void)type;
    (void)bytes;
    (void)name;
    (void)count;
    (void)options;
    (void)values;
    return state != NULL && !state->complete && data != NULL ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLinkAddData(CUlinkState state, int type, void *data, size_t bytes, const char *name, unsigned count,
                       int *options, void **values) {
    return cuLinkAddData_v2(state, type, data, bytes, name, count, options, values);
}

CUresult cuLinkAddFile_v2(CUlinkState state, int type, const char *path, unsigned count, int *options, void **values) {
    (void)type;
    (void)count;
    (void)options;
    (void)values;
    if (state == NULL || state->complete || path == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return access(path, R_OK) == 0 ? driver_ready() : CUDA_ERROR_FILE_NOT_FOUND;
}

CUresult cuLinkAddFile(CUlinkState state, int type, const char *path, unsigned count, int *options, void **values) {
    return cuLinkAddFile_v2(state, type, path, count, options, values);
}

/* The linker's state owns the image. */
CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes) {
    if (state == NULL || image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    state->complete = true;
    *image = state->image;
    if (bytes != NULL)
        *bytes = sizeof state->image;
    return driver_ready();
}

CUresult cuLinkDestroy(CUlinkState state) {
    free(state);
    return state != NULL ? driver_ready() : CUDA_ERROR_INVALID_HANDLE;
}
