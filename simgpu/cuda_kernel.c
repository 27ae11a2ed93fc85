/* Modules and kernels. A kernel is its name, and the name says how long it runs: anything that ends in _<number>ns, us
 * or ms, such as spin_1000us. What a module's image contains does not matter. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

#define LONGEST_NS 3600000000000ull

struct CUfunc_st {
    struct CUfunc_st *next;
    uint64_t duration_ns;
};

struct CUmod_st {
    CUcontext context;
    CUfunction functions;
};

static bool parse_duration(const char *name, uint64_t *duration_ns_p) {
    static const struct {
        const char *unit;
        uint64_t ns;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}};
    const char *number = strrchr(name, '_');
    char *end;
    if (number == NULL || !isdigit((unsigned char)number[1]))
        return false;
    unsigned long long value = strtoull(number + 1, &end, 10);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) == 0 && value <= LONGEST_NS / units[i].ns) {
            *duration_ns_p = value * units[i].ns;
            return true;
        }
    }
    return false;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (module == NULL || image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *module = calloc(1, sizeof **module);
    if (*module == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*module)->context = context;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
    (void)count;
    (void)options; /* they are for the compiler */
    (void)values;
    return cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(CUmodule module) {
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    while (module->functions != NULL) {
        CUfunction next = module->functions->next;
        free(module->functions);
        module->functions = next;
    }
    free(module);
    return driver_ready();
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    uint64_t duration_ns;
    if (function == NULL || module == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!parse_duration(name, &duration_ns))
        return CUDA_ERROR_NOT_FOUND;
    *function = calloc(1, sizeof **function);
    if (*function == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    **function = (struct CUfunc_st){.next = module->functions, .duration_ns = duration_ns};
    module->functions = *function;
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, CUstream stream, bool per_thread, bool has_size) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!has_size)
        return CUDA_ERROR_INVALID_VALUE;
    return launch_submit(context, stream, per_thread, function->duration_ns);
}

CUresult kernel_launch(CUfunction function, CUstream stream, bool per_thread) {
    return launch(function, stream, per_thread, true);
}

uint64_t kernel_duration_ns(CUfunction function) {
    return function->duration_ns;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters,
                        void **extra) {
    (void)shared_bytes;
    (void)parameters;
    (void)extra;
    return launch(function, stream, false, grid_x && grid_y && grid_z && block_x && block_y && block_z);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                             void **parameters, void **extra) {
    (void)shared_bytes;
    (void)parameters;
    (void)extra;
    return launch(function, stream, true, grid_x && grid_y && grid_z && block_x && block_y && block_z);
}

static CUresult launch_configured(const CUlaunchConfig *config, CUfunction function, bool per_thread) {
    if (config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool has_size = config->gridDimX && config->gridDimY && config->gridDimZ && config->blockDimX &&
                    config->blockDimY && config->blockDimZ;
    return launch(function, config->hStream, per_thread, has_size);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)parameters;
    (void)extra;
    return launch_configured(config, function, false);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)parameters;
    (void)extra;
    return launch_configured(config, function, true);
}
