#include "compute/launch.h"

#include "base/contract.h"
#include "compute/flow.h"
#include "compute/gate.h"
#include "compute/marker.h"
#include "cuda/capture.h"
#include "cuda/device.h"
#include "share/share.h"

void launch_context(CUcontext context, CUdevice device) {
    uint32_t gpu;
    if (device_gpu(device, &gpu) != CUDA_SUCCESS || gpu == SHARE_NO_GPU)
        return;
    marker_context(context, gpu);
    gate_use(gpu);
}

void launch_device(CUdevice device) {
    uint32_t gpu;
    if (device_gpu(device, &gpu) == CUDA_SUCCESS && gpu != SHARE_NO_GPU)
        gate_use(gpu);
}

static void pass(uint32_t gpu, CUstream stream) {
    uint64_t launches;
    if (gate_come(gpu, &launches))
        flow_launch(gpu, stream, launches);
    gate_wait(gpu); /* it may have closed while the flow was waited for */
}

CUresult launch_pass(CUstream stream, bool several) {
    place_t place;
    /* Without a context the real function knows best what to say. */
    if (device_place(&place) != CUDA_SUCCESS || place.context == NULL)
        return CUDA_SUCCESS;
    if (place.gpu == SHARE_NO_GPU)
        return CUDA_ERROR_NOT_PERMITTED;
    if (capture_has(stream))
        return CUDA_SUCCESS;
    marker_context(place.context, place.gpu);
    if (stream == CU_STREAM_PER_THREAD)
        marker_own_streams();
    pass(place.gpu, stream);
    for (uint32_t other = 0; several && other < MAX_GPUS; other++) {
        if (other != place.gpu && gate_is_used(other))
            gate_wait(other);
    }
    return CUDA_SUCCESS;
}
