/* Contexts that are made in other ways: for graphics, with parameters, and green ones, which have a part of the
 * multiprocessors. All are contexts like any other here: that a green one has only its part is not simulated.
 */
#include "cuda_driver.h"

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

/* It lies on the device's primary context, which it keeps alive. */
CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned flags) {
    (void)resources;
    if (green == NULL || flags != 1) /* its default stream: the flag must be there */
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
