/* Modules and kernels. A kernel is only its name, and the name may contain how long it runs: spin_1000us runs for
 * that long (ns, us or ms). A name that ends in _ns without a number runs for as many nanoseconds as its first
 * parameter says, which has 64 bits. All others run for as long as the GPU's description says; it may also say that
 * there are none. The content of a module's image does not matter.
 *
 * 25pct between two underscores is how much of the GPU the kernel takes, as in spin_25pct_1000us; the default is all
 * of it. A name that begins with meet2_, or another number, is a kernel of a collective (launch.c). The words after
 * it are the key of a group with kernels of all processes on the node, as in meet2_ring_500us; without a key the
 * group consists of kernels of the same process. A kernel whose name begins with fault_ accesses an invalid address,
 * and its context is lost. */
#define _GNU_SOURCE
#include "cuda/kernel/module.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/device/context.h"
#include "cuda/device/device.h"

#define MAX_DURATION_NS 3600000000000ull
#define FAULT "fault_"
#define BY_PARAMETER UINT64_MAX
#define BY_DEFAULT (UINT64_MAX - 1)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* for the modules' lists */

/* Parse a word of a kernel's name other than the last one, the duration. */
static void parse_word(const char *word, size_t length, bool first, kernel_t *kernel) {
    unsigned number;
    int used = 0;
    if (first && sscanf(word, "meet%2u%n", &number, &used) == 1 && (size_t)used == length) {
        kernel->group_size = number;
    } else if (sscanf(word, "%3upct%n", &number, &used) == 1 && (size_t)used == length && number > 0 && number <= 100) {
        kernel->percent = number;
    } else if (kernel->group_size > 1) {
        uint64_t hash = (kernel->key != 0 ? kernel->key : 0xcbf29ce484222325u) ^ kernel->group_size;
        for (size_t i = 0; i < length; i++)
            hash = (hash ^ (uint8_t)word[i]) * 0x100000001b3u;
        kernel->key = hash != 0 ? hash : 1;
    }
}

static kernel_t parse_words(const char *name) {
    kernel_t kernel = {.percent = 100};
    const char *word = name, *end;
    for (; (end = strchr(word, '_')) != NULL; word = end + 1)
        parse_word(word, (size_t)(end - word), word == name, &kernel);
    return kernel;
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
        if (strcmp(end, units[i].unit) == 0 && value <= MAX_DURATION_NS / units[i].ns) {
            *duration_ns_p = value * units[i].ns;
            return true;
        }
    }
    return false;
}

CUmodule module_make(CUcontext context) {
    CUmodule module = handle_make(HANDLE_MODULE, sizeof *module);
    if (module != NULL && context != NULL) {
        module->context = context;
        module->context_id = context->id;
    }
    return module;
}

void module_end(CUmodule module) {
    while (module->functions != NULL) {
        CUfunction function = module->functions;
        module->functions = function->next;
        free(function->name);
        handle_end(function, HANDLE_FUNCTION);
    }
    handle_end(module, HANDLE_MODULE);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (module == NULL || image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *module = module_make(context);
    return *module != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
    (void)count;
    (void)options; /* they are for the compiler */
    (void)values;
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    if (path == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return access(path, R_OK) == 0 ? cuModuleLoadData(module, path) : CUDA_ERROR_FILE_NOT_FOUND;
}

CUresult cuModuleUnload(CUmodule module) {
    handle_check(module, HANDLE_MODULE);
    if (module == NULL || module->context == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    module_end(module);
    return driver_ready();
}

/* With the lock held. */
static CUfunction find(CUmodule module, const char *name) {
    CUfunction function = module->functions;
    while (function != NULL && strcmp(function->name, name) != 0)
        function = function->next;
    return function;
}

/* With the lock held. */
static CUfunction add(CUmodule module, const char *name, uint64_t duration_ns) {
    char *copy = strdup(name);
    CUfunction function = copy != NULL ? handle_make(HANDLE_FUNCTION, sizeof *function) : NULL;
    if (function == NULL) {
        free(copy);
        return NULL;
    }
    function->next = module->functions;
    function->module = module;
    function->name = copy;
    function->kernel = parse_words(name);
    function->kernel.duration_ns = duration_ns;
    function->kernel.faults = strncmp(name, FAULT, strlen(FAULT)) == 0;
    function->dynamic_bytes = FIRST_DYNAMIC_BYTES;
    function->carveout = -1;
    module->functions = function;
    module->count++;
    return function;
}

CUresult module_function(CUfunction *function, CUmodule module, const char *name, const gpu_t *gpu) {
    uint64_t duration_ns = BY_DEFAULT;
    if (!parse_duration(name, &duration_ns) && (*name == '\0' || gpu->image->kernel_ns == 0))
        return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&mutex);
    *function = find(module, name);
    if (*function == NULL)
        *function = add(module, name, duration_ns);
    pthread_mutex_unlock(&mutex);
    return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    handle_check(module, HANDLE_MODULE);
    if (function == NULL || module == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = module->context;
    CUresult result = context == NULL ? context_current(&context) : context_usable_as(context, module->context_id);
    return result == CUDA_SUCCESS ? module_function(function, module, name, context->gpu) : result;
}

/* Only functions that were looked up before are counted: a simulated module does not know others. */
CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) {
    if (count == NULL || module == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = module->count;
    return driver_ready();
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module) {
    if (functions == NULL || module == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    unsigned at = 0;
    for (CUfunction function = module->functions; function != NULL && at < count; function = function->next)
        functions[at++] = function;
    pthread_mutex_unlock(&mutex);
    return driver_ready();
}

/* Global variables are in a module's image, which is not read. */
CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name) {
    if ((pointer == NULL && bytes == NULL) || module == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = driver_ready();
    return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_FOUND : result;
}

CUresult cuModuleGetLoadingMode(int *mode) {
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = 2; /* lazy */
    return driver_ready();
}

bool kernel_duration(CUfunction function, const gpu_t *gpu, void **parameters, uint64_t *duration_ns_p) {
    handle_check(function, HANDLE_FUNCTION);
    *duration_ns_p = function->kernel.duration_ns;
    if (*duration_ns_p == BY_DEFAULT)
        *duration_ns_p = gpu->image->kernel_ns;
    if (function->kernel.duration_ns != BY_PARAMETER)
        return true;
    if (parameters == NULL || parameters[0] == NULL)
        return false;
    memcpy(duration_ns_p, parameters[0], sizeof *duration_ns_p);
    return *duration_ns_p <= MAX_DURATION_NS;
}
