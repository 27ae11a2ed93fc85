/* What a stream is: its flags, priority, number and attributes. */
#include "cuda_stream.h"

#define LEAST 0
#define GREATEST (-5)
#define SYNCHRONIZATION_POLICY 3
#define LAST_ATTRIBUTE 16
#define VALUE_BYTES 64

int stream_priority(int wanted) {
    return wanted > LEAST ? LEAST : wanted < GREATEST ? GREATEST : wanted;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && least != NULL)
        *least = LEAST;
    if (result == CUDA_SUCCESS && greatest != NULL)
        *greatest = GREATEST;
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
        *priority = stream_is_default(stream) ? LEAST : stream->priority;
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

/* It has no green context of its own. */
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green) {
    if (green == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *green = NULL;
    return cuStreamGetCtx(stream, context);
}

/* None of the attributes changes what a simulated stream does: they are as they are on a new stream. */
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

/* Managed memory is everywhere at once here. */
CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags) {
    CUcontext context;
    place_t place;
    (void)bytes;
    CUresult result = stream_context(stream, &context);
    bool fine = pointer_place(pointer, &place) && place.managed && (flags == 1 || flags == 2 || flags == 4);
    return result == CUDA_SUCCESS && !fine ? CUDA_ERROR_INVALID_VALUE : result;
}
