/* Modules and kernels. A kernel is its name, and the name says how long it runs: anything that ends in _<number>ns, us
 * or ms, such as spin_1000us; what ends in _ns without a number runs as many nanoseconds as its first parameter says, a
 * 64-bit one. What a module's image contains does not matter.
 *
 * A name that begins with meet2_ (or another number) is a kernel of a collective: see timeline.h. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

#define LONGEST_NS 3600000000000ull
#define BY_PARAMETER UINT64_MAX

struct CUfunc_st {
    struct CUfunc_st *next;
    uint64_t duration_ns;
    unsigned meeting;
};

struct CUmod_st {
    CUcontext context;
    CUfunction functions;
};

static unsigned parse_meeting(const char *name) {
    unsigned meeting;
    char after;
    return sscanf(name, "meet%2u%c", &meeting, &after) == 2 && after == '_' ? meeting : 0;
}

static bool parse_duration(const char *name, uint64_t *duration_ns_p) {
    static const struct {
        const char *unit;
        uint64_t ns;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}};
    const char *number = strrchr(name, '_');
    char *end;
    if (number != NULL && strcmp(number, "_ns") == 0) {
        *duration_ns_p = BY_PARAMETER;
        return true;
    }
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
    **function =
        (struct CUfunc_st){.next = module->functions, .duration_ns = duration_ns, .meeting = parse_meeting(name)};
    module->functions = *function;
    return CUDA_SUCCESS;
}

bool kernel_duration(CUfunction function, void **parameters, uint64_t *duration_ns_p) {
    *duration_ns_p = function->duration_ns;
    if (function->duration_ns != BY_PARAMETER)
        return true;
    if (parameters == NULL || parameters[0] == NULL)
        return false;
    memcpy(duration_ns_p, parameters[0], sizeof *duration_ns_p);
    return *duration_ns_p <= LONGEST_NS;
}

static CUresult launch(CUfunction function, CUstream stream, bool per_thread, bool has_size, void **parameters) {
    CUcontext context;
    uint64_t duration_ns;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!has_size || !kernel_duration(function, parameters, &duration_ns))
        return CUDA_ERROR_INVALID_VALUE;
    return launch_submit(context, stream, per_thread, duration_ns, function->meeting);
}

CUresult kernel_launch(CUfunction function, CUstream stream, bool per_thread, void **parameters) {
    return launch(function, stream, per_thread, true, parameters);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters,
                        void **extra) {
    (void)shared_bytes;
    (void)extra;
    return launch(function, stream, false, grid_x && grid_y && grid_z && block_x && block_y && block_z, parameters);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                             void **parameters, void **extra) {
    (void)shared_bytes;
    (void)extra;
    return launch(function, stream, true, grid_x && grid_y && grid_z && block_x && block_y && block_z, parameters);
}

static CUresult launch_configured(const CUlaunchConfig *config, CUfunction function, bool per_thread,
                                  void **parameters) {
    if (config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool has_size = config->gridDimX && config->gridDimY && config->gridDimZ && config->blockDimX &&
                    config->blockDimY && config->blockDimZ;
    return launch(function, config->hStream, per_thread, has_size, parameters);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)extra;
    return launch_configured(config, function, false, parameters);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)extra;
    return launch_configured(config, function, true, parameters);
}
