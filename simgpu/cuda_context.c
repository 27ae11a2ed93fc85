/* Contexts: primary ones, one a GPU and counted; created ones; each thread's stack of them. */
#include "cuda_driver.h"
#include "mig.h"
#include "slots.h"
#include "timeline.h"

#define STACK_DEPTH 32u
#define MOST_FLAGS 0xffu

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st contexts[MAX_CONTEXTS];
static unsigned primary_flags[IMAGE_MAX_GPUS];
static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local unsigned depth;

CUresult context_usable(CUcontext context) {
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (context->gpu->image->lost)
        return CUDA_ERROR_UNKNOWN;
    if (context->fault != 0 && timeline_reached(context->gpu, context->fault))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    return context->gpu->image->ecc_failed ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS;
}

CUresult context_usable_as(CUcontext context, uint64_t id) {
    return context->id == id ? context_usable(context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_current(CUcontext *context_p) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (depth == 0 || stack[depth - 1] == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context_p = stack[depth - 1];
    return context_usable(*context_p);
}

static bool is_context(CUcontext context) {
    return context >= contexts && context < contexts + MAX_CONTEXTS;
}

static CUcontext find_primary(CUdevice device) {
    return contexts[device].alive ? &contexts[device] : NULL;
}

/* With `mutex` held. A primary context has one handle for ever; others' are used again as late as can be. */
static CUcontext find_place(CUdevice device, bool primary) {
    static unsigned last;
    if (primary)
        return &contexts[device];
    for (unsigned tried = 0; tried < MAX_CONTEXTS - IMAGE_MAX_GPUS; tried++) {
        last = (last + 1) % (MAX_CONTEXTS - IMAGE_MAX_GPUS);
        if (!contexts[IMAGE_MAX_GPUS + last].alive)
            return &contexts[IMAGE_MAX_GPUS + last];
    }
    return NULL;
}

/* With `mutex` held. */
static CUresult open_context(CUdevice device, unsigned flags, bool primary, CUcontext *context_p) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    if (gpu->image->lost)
        return CUDA_ERROR_UNKNOWN;
    if (!mig_usable(gpu) || !mps_admits(gpu))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    gpu->limit_bytes = mps_limit_bytes(device);
    gpu->mps = mps_is_client();
    gpu->percent = mps_percent();
    if (!slots_join(gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUcontext place = find_place(device, primary);
    if (place == NULL || !slots_charge(gpu, gpu->image->context_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    static uint64_t last_id;
    *place = (struct CUctx_st){.id = ++last_id,
                               .alive = true,
                               .primary = primary,
                               .flags = flags,
                               .number = (unsigned)(place - contexts),
                               .device = device,
                               .gpu = gpu};
    *context_p = place;
    return CUDA_SUCCESS;
}

/* With `mutex` held. Its memory is free again when its work has ended. */
static void close_context(CUcontext context) {
    timeline_wait(context->gpu, context->last_mark);
    memory_free_context(context);
    array_free_context(context);
    slots_refund(context->gpu, context->gpu->image->context_bytes);
    context->alive = false;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    CUcontext primary = find_primary(device);
    if (primary == NULL)
        result = open_context(device, primary_flags[gpu->index], true, &primary);
    if (result == CUDA_SUCCESS) {
        primary->references++;
        *context = primary;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static CUresult drop_primary(CUdevice device, bool reset) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    CUcontext primary = find_primary(device);
    if (primary == NULL)
        result = reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    else if (reset || --primary->references == 0)
        close_context(primary);
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return drop_primary(device, false);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return drop_primary(device, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return drop_primary(device, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return drop_primary(device, true);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    CUcontext primary = find_primary(device);
    *active = primary != NULL;
    *flags = primary_flags[gpu->index];
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result == CUDA_SUCCESS && flags > MOST_FLAGS)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    CUcontext primary = find_primary(device);
    if (primary != NULL)
        primary->flags = flags;
    primary_flags[gpu->index] = flags;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_context(context) || depth == STACK_DEPTH)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    CUresult result = open_context(device, flags, false, context);
    pthread_mutex_unlock(&mutex);
    return result == CUDA_SUCCESS ? cuCtxPushCurrent_v2(*context) : result;
}

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_context(context) || !context->alive || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    close_context(context);
    pthread_mutex_unlock(&mutex);
    if (depth > 0 && stack[depth - 1] == context)
        depth--;
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext context) {
    return cuCtxDestroy_v2(context);
}

CUresult cuCtxSetCurrent(CUcontext context) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (context != NULL && !is_context(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth > 0)
        depth--;
    if (context != NULL)
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS && context == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *context = depth > 0 ? stack[depth - 1] : NULL;
    return result;
}

/* The context that is named, or the current one. */
static CUresult context_of(CUcontext named, CUcontext *context_p) {
    CUresult result = named == NULL ? context_current(context_p) : driver_ready();
    if (named == NULL || result != CUDA_SUCCESS)
        return result;
    *context_p = named;
    return is_context(named) ? context_usable(named) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext named) {
    CUcontext context;
    CUresult result = context_of(named, &context);
    if (result == CUDA_SUCCESS && device == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *device = context->device;
    return result;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    return cuCtxGetDevice_v2(device, NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext named) {
    CUcontext context;
    CUresult result = context_of(named, &context);
    if (result == CUDA_SUCCESS && context->captures > 0)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result == CUDA_SUCCESS) {
        timeline_wait(context->gpu, context->last_mark);
        pools_waited();
        result = context_usable(context);
    }
    return result;
}

CUresult cuCtxSynchronize(void) {
    return cuCtxSynchronize_v2(NULL);
}
