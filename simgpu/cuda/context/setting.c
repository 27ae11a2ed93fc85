/* Settings of a context. They are stored and returned, but have no effect: simulated kernels need no stack, heap or
 * caches. */
#include "cuda/device/context.h"
#include "cuda/device/device.h"

#define API_VERSION 3020u
#define MAX_FLAGS 0xffu

/* Defaults, by the limit's number. Simulated devices do not support the last two. */
static const size_t default_limits[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0, 0, 0, 0};
#define SETTABLE 7 /* simulated devices do not support the others */

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    (void)context;
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS && version == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *version = API_VERSION;
    return result;
}

CUresult cuCtxSetLimit(int limit, size_t value) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && (limit < 0 || limit >= SETTABLE))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        context->limits[limit] = value;
    return result;
}

CUresult cuCtxGetLimit(size_t *value, int limit) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && (value == NULL || limit < 0 || limit >= (int)LIMITS))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *value = context->limits[limit] != 0 ? context->limits[limit] : default_limits[limit];
    return result;
}

CUresult cuCtxGetFlags(unsigned *flags) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && flags == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *flags = context->flags;
    return result;
}

CUresult cuCtxSetFlags(unsigned flags) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && flags > MAX_FLAGS)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        context->flags = flags;
    return result;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    CUresult result = context != NULL ? context_usable(context) : context_current(&context);
    if (result == CUDA_SUCCESS && id == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *id = context->id;
    return result;
}

static CUresult set(unsigned value, unsigned most, bool cache) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && value > most)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *(cache ? &context->cache : &context->banks) = value;
    return result;
}

static CUresult get(int *value, bool cache) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && value == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *value = (int)(cache ? context->cache : context->banks);
    return result;
}

CUresult cuCtxSetCacheConfig(int config) {
    return set((unsigned)config, 3, true);
}

CUresult cuCtxGetCacheConfig(int *config) {
    return get(config, true);
}

CUresult cuCtxSetSharedMemConfig(int config) {
    return set((unsigned)config, 2, false);
}

CUresult cuCtxGetSharedMemConfig(int *config) {
    return get(config, false);
}

CUresult cuCtxResetPersistingL2Cache(void) {
    CUcontext context;
    return context_current(&context);
}

/* Simulated contexts can always access all memory of their process. Peer access is recorded because enabling it
 * twice is an error. */
static CUresult change_peer(CUcontext peer, bool enable) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (peer == NULL || peer == context || !peer->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->device == context->device)
        return CUDA_ERROR_INVALID_DEVICE;
    uint64_t bit = 1ull << peer->device;
    if (((context->peers & bit) != 0) == enable)
        return enable ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers ^= bit;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    return flags == 0 ? change_peer(peer, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    return change_peer(peer, false);
}

/* Profilers are not simulated: starting one succeeds and does nothing. */
CUresult cuProfilerStart(void) {
    CUcontext context;
    return context_current(&context);
}

CUresult cuProfilerStop(void) {
    CUcontext context;
    return context_current(&context);
}

CUresult cuProfilerInitialize(const char *configuration, const char *output, int mode) {
    (void)configuration;
    (void)output;
    (void)mode;
    return CUDA_ERROR_NOT_SUPPORTED; /* as in all drivers since CUDA 11 */
}

CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
    CUcontext context;
    CUresult result = context_current(&context);
    return result == CUDA_SUCCESS && (target != 0 || scope < 100) ? CUDA_ERROR_INVALID_VALUE : result;
}
