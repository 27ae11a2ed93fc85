/* Calls on streams: creation, destruction, waiting, and properties. */
#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/memory/pointer.h"
#include "cuda/memory/pool.h"
#include "cuda/stream/capture.h"
#include "cuda/stream/stream.h"

#define LOWEST_PRIORITY 0
#define GREATEST_PRIORITY (-5)
#define SYNCHRONIZATION_POLICY 3
#define LAST_ATTRIBUTE 16
#define VALUE_BYTES 64

static int stream_priority(int wanted) {
    return wanted > LOWEST_PRIORITY ? LOWEST_PRIORITY : wanted < GREATEST_PRIORITY ? GREATEST_PRIORITY : wanted;
}

static CUresult create(CUstream *stream, unsigned flags, int priority) {
    static _Atomic uint64_t last_id = 16; /* default streams have lower ids */
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream == NULL || (flags & ~NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *stream = handle_make(HANDLE_STREAM, sizeof **stream);
    if (*stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*stream)->context = context;
    (*stream)->context_id = context->id;
    (*stream)->flags = flags;
    (*stream)->priority = priority;
    (*stream)->id = ++last_id;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return create(stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return create(stream, flags, stream_priority(priority));
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    if (stream_is_default(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    handle_check(stream, HANDLE_STREAM);
    capture_abandon(stream);
    handle_end(stream, HANDLE_STREAM); /* its work stays on the timeline and in its context */
    return driver_ready();
}

CUresult cuStreamDestroy(CUstream stream) {
    return cuStreamDestroy_v2(stream);
}

static CUresult wait_stream(CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result == CUDA_SUCCESS && stream_is_capturing(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result == CUDA_SUCCESS) {
        timeline_wait(context->gpu, *stream_end(context, stream, per_thread));
        pools_trim();
        result = context_usable(context);
    }
    return result;
}

CUresult cuStreamSynchronize(CUstream stream) {
    return wait_stream(stream, false);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return wait_stream(stream, true);
}

static CUresult query_stream(CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    return timeline_reached(context->gpu, *stream_end(context, stream, per_thread)) ? CUDA_SUCCESS
                                                                                    : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamQuery(CUstream stream) {
    return query_stream(stream, false);
}

CUresult cuStreamQuery_ptsz(CUstream stream) {
    return query_stream(stream, true);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream_is_default(stream))
        return context_current(context);
    handle_check(stream, HANDLE_STREAM);
    *context = stream->context;
    return driver_ready();
}

CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *status = stream_is_capturing(stream);
    return driver_ready();
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) {
    return cuStreamIsCapturing(stream, status);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && least != NULL)
        *least = LOWEST_PRIORITY;
    if (result == CUDA_SUCCESS && greatest != NULL)
        *greatest = GREATEST_PRIORITY;
    return result;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result == CUDA_SUCCESS && flags == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *flags = stream_is_default(stream) ? 0 : stream->flags;
    return result;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result == CUDA_SUCCESS && priority == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *priority = stream_is_default(stream) ? LOWEST_PRIORITY : stream->priority;
    return result;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result == CUDA_SUCCESS && id == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *id = stream_is_default(stream) ? (stream == PER_THREAD ? 2 : 1) : stream->id;
    return result;
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice *device) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result == CUDA_SUCCESS && device == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *device = context->device;
    return result;
}

/* Streams of green contexts are not simulated. */
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green) {
    if (green == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *green = NULL;
    return cuStreamGetCtx(stream, context);
}

/* Attributes have no effect on a simulated stream and always have their defaults. */
CUresult cuStreamGetAttribute(CUstream stream, int attribute, void *value) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result == CUDA_SUCCESS && (value == NULL || attribute < 1 || attribute > LAST_ATTRIBUTE))
        result = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; result == CUDA_SUCCESS && i < VALUE_BYTES; i++)
        ((char *)value)[i] = 0;
    if (result == CUDA_SUCCESS && attribute == SYNCHRONIZATION_POLICY)
        *(int *)value = 1; /* automatic */
    return result;
}

CUresult cuStreamSetAttribute(CUstream stream, int attribute, const void *value) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    bool fine = value != NULL && attribute >= 1 && attribute <= LAST_ATTRIBUTE;
    return result == CUDA_SUCCESS && !fine ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
    CUcontext context;
    CUresult result = stream_context(to, &context);
    return result == CUDA_SUCCESS ? stream_context(from, &context) : result;
}

/* All devices can access managed memory here. */
CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags) {
    CUcontext context;
    memory_place_t place;
    (void)bytes;
    CUresult result = stream_context(stream, &context);
    bool fine = pointer_find(pointer, &place) && place.managed && (flags == 1 || flags == 2 || flags == 4);
    return result == CUDA_SUCCESS && !fine ? CUDA_ERROR_INVALID_VALUE : result;
}
