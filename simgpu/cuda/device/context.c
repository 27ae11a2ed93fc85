#include "cuda/device/context.h"

#include "cuda/device/device.h"
#include "cuda/device/mps.h"
#include "time/timeline.h"

#define STACK_DEPTH 32u

struct CUctx_st contexts[MAX_CONTEXTS];
static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local unsigned depth;

CUresult context_usable(CUcontext context) {
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (context->gpu->image->lost)
        return CUDA_ERROR_UNKNOWN;
    if (mps_ended(context->gpu) != CUDA_SUCCESS)
        return mps_ended(context->gpu);
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

bool context_is_known(CUcontext context) {
    return context >= contexts && context < contexts + MAX_CONTEXTS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!context_is_known(context) || depth == STACK_DEPTH)
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

CUresult cuCtxSetCurrent(CUcontext context) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (context != NULL && !context_is_known(context))
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

void context_pop(CUcontext context) {
    if (depth > 0 && stack[depth - 1] == context)
        depth--;
}
