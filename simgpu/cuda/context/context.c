/* Creates and destroys contexts: primary contexts, one per device and reference-counted; ordinary ones; graphics
 * contexts; and green contexts. All of them behave alike here: a green context is not restricted to a part of the
 * multiprocessors. */
#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/device/mps.h"
#include "cuda/memory/array.h"
#include "cuda/memory/memory.h"
#include "state/servers.h"
#include "state/slots.h"
#include "time/timeline.h"

#define MAX_FLAGS 0xffu

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned primary_flags[IMAGE_MAX_GPUS];

static CUcontext find_primary(CUdevice device) {
    return contexts[device].alive ? &contexts[device] : NULL;
}

/* With `mutex` held. A primary context always has the same handle. Entries of other contexts are reused as late as
 * possible. */
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
    if (!gpu_is_usable(gpu))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    int count = 0;
    (void)cuDeviceGetCount(&count);
    result = mps_admit(gpu, device, count);
    if (result != CUDA_SUCCESS)
        return result;
    if (!slots_join(gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUcontext place = find_place(device, primary);
    if (place == NULL || !slots_charge(gpu, gpu->image->context_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (gpu->mps != 0 && !servers_add_context(gpu, mps_max_contexts(gpu))) {
        slots_refund(gpu, gpu->image->context_bytes);
        return CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
    }
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

/* With `mutex` held. Waits for the context's work, then frees its memory. */
static void close_context(CUcontext context) {
    timeline_wait(context->gpu, context->last_mark);
    memory_free_context(context);
    array_free_context(context);
    slots_refund(context->gpu, context->gpu->image->context_bytes);
    servers_drop_context(context->gpu);
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
    if (result == CUDA_SUCCESS && flags > MAX_FLAGS)
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
    if (!context_is_known(context) || !context->alive || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    close_context(context);
    pthread_mutex_unlock(&mutex);
    context_pop(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext context) {
    return cuCtxDestroy_v2(context);
}

/* Return the given context, or the current one for NULL. */
static CUresult context_or_current(CUcontext named, CUcontext *context_p) {
    CUresult result = named == NULL ? context_current(context_p) : driver_ready();
    if (named == NULL || result != CUDA_SUCCESS)
        return result;
    *context_p = named;
    return context_is_known(named) ? context_usable(named) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext named) {
    CUcontext context;
    CUresult result = context_or_current(named, &context);
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
    CUresult result = context_or_current(named, &context);
    if (result == CUDA_SUCCESS && context->captures > 0)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result == CUDA_SUCCESS) {
        timeline_wait(context->gpu, context->last_mark);
        pools_trim();
        result = context_usable(context);
    }
    return result;
}

CUresult cuCtxSynchronize(void) {
    return cuCtxSynchronize_v2(NULL);
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
    (void)affinity;
    return count == 0 ? cuCtxCreate_v2(context, flags, device) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    return parameters == NULL ? cuCtxCreate_v2(context, flags, device) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuGLCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device, uint32_t vdpau, void *get_address) {
    (void)vdpau;
    (void)get_address;
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned flags, CUdevice device, uint32_t vdpau, void *get_address) {
    return cuVDPAUCtxCreate_v2(context, flags, device, vdpau, get_address);
}

/* A green context is a reference to the device's primary context. */
CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned flags) {
    (void)resources;
    if (green == NULL || flags != 1) /* CU_GREEN_CTX_DEFAULT_STREAM, which is required */
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context;
    CUresult result = cuDevicePrimaryCtxRetain(&context, device);
    *green = (CUgreenCtx)context;
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    CUcontext context = (CUcontext)green;
    return context != NULL ? cuDevicePrimaryCtxRelease_v2(context->device) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    if (context == NULL || green == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)green;
    return driver_ready();
}

CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id) {
    CUcontext context = (CUcontext)green;
    if (id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = context != NULL ? context_usable(context) : context_current(&context);
    if (result == CUDA_SUCCESS)
        *id = context->id;
    return result;
}
