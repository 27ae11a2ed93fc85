/* Lazy initialization of the runtime, and the last error. */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUcontext contexts[MAX_DEVICES]; /* primary contexts, retained forever */
static _Thread_local int device;
static _Thread_local CUcontext bound;
static _Thread_local cudaError_t last;

void *driver_find(_Atomic(void *) *found, const char *name) {
    if (*found != NULL)
        return *found;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    __typeof__(&cuGetProcAddress) find = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    CUdriverProcAddressQueryResult status;
    void *function = NULL;
    if (find != NULL && find(name, &function, DRIVER_API, 0, &status) == CUDA_SUCCESS)
        *found = function;
    return *found;
}

cudaError_t runtime_result(CUresult result) {
    cudaError_t error = (cudaError_t)result;
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last = error;
    return error;
}

/* Checked every time: it must fail again in a forked child. */
CUresult runtime_begin(void) {
    return DRIVER(cuInit, 0);
}

CUresult runtime_ready(void) {
    if (bound != NULL && bound == contexts[device])
        return CUDA_SUCCESS;
    CUresult result = runtime_begin();
    pthread_mutex_lock(&mutex);
    if (result == CUDA_SUCCESS && contexts[device] == NULL)
        result = DRIVER(cuDevicePrimaryCtxRetain, &contexts[device], device);
    pthread_mutex_unlock(&mutex);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuCtxSetCurrent, contexts[device]);
    if (result == CUDA_SUCCESS)
        bound = contexts[device];
    return result;
}

int runtime_device(void) {
    return device;
}

API cudaError_t cudaSetDevice(int wanted) {
    int count = 0;
    CUresult result = runtime_begin();
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuDeviceGetCount, &count);
    if (result == CUDA_SUCCESS && (wanted < 0 || wanted >= count || wanted >= MAX_DEVICES))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result != CUDA_SUCCESS)
        return runtime_result(result);
    device = wanted;
    return runtime_result(runtime_ready());
}

API cudaError_t cudaGetDevice(int *current) {
    *current = device;
    return runtime_result(runtime_begin());
}

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

API cudaError_t cudaPeekAtLastError(void) {
    return last;
}

API const char *cudaGetErrorName(cudaError_t error) {
    const char *name = NULL;
    (void)DRIVER(cuGetErrorName, (CUresult)error, &name);
    return name != NULL ? name : "unrecognized error code";
}

API const char *cudaGetErrorString(cudaError_t error) {
    const char *text = NULL;
    (void)DRIVER(cuGetErrorString, (CUresult)error, &text);
    return text != NULL ? text : "unrecognized error code";
}

API cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = RUNTIME_API;
    return cudaSuccess;
}

API cudaError_t cudaDriverGetVersion(int *version) {
    return runtime_result(DRIVER(cuDriverGetVersion, version));
}

API cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                        enum cudaDriverEntryPointQueryResult *status) {
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int version = RUNTIME_API;
    CUresult result = DRIVER(cuDriverGetVersion, &version);
    if (version > RUNTIME_API)
        version = RUNTIME_API; /* an older driver has no value for that */
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuGetProcAddress, name, function, version, flags, &found);
    if (status != NULL)
        *status = (enum cudaDriverEntryPointQueryResult)found;
    return runtime_result(result);
}
