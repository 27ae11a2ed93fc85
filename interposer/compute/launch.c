#include "compute/launch.h"

#include "base/contract.h"
#include "compute/flow.h"
#include "compute/gate.h"
#include "compute/marker.h"
#include "compute/passes.h"
#include "cuda/capture.h"
#include "cuda/device.h"
#include "cuda/stream.h"
#include "driver/driver.h"
#include "share/share.h"

/* So many launches of a GPU that are not to be counted are let through at once, while those of another one are. */
#define UNCOUNTED_AT_ONCE 64u

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

/* How many launches are counted at once: more than one if nothing has to be done between them. */
static unsigned at_once(uint32_t gpu) {
    if (!gate_is_open(gpu))
        return 1;
    return gate_is_counted(gpu) ? flow_at_once(gpu, gate_passed(gpu)) : UNCOUNTED_AT_ONCE;
}

/* One launch passes; how many more have been counted. */
static unsigned pass(uint32_t gpu, CUcontext context, CUstream stream, uint64_t edition) {
    unsigned several = passes_left(edition, gpu); /* of a launch in another stream */
    if (several > 0)
        return several - 1;
    several = at_once(gpu);
    uint64_t launches = gate_come(gpu, several);
    if (gate_is_counted(gpu))
        flow_launch(gpu, context, stream, launches);
    gate_wait(gpu); /* it may have closed while the flow was waited for */
    return several - 1;
}

/* Where the work of a stream is done: that of a default stream in the current context. NULL: nowhere, and the real
 * function knows best what to say. */
static CUcontext context_of(CUstream stream) {
    CUcontext context = NULL;
    if (stream_is_handle(stream) && REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS && context != NULL)
        return context;
    return REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

CUresult launch_pass(CUstream stream, bool several) {
    uint32_t gpu;
    uint64_t edition = atomic_load(&passes_edition);
    if (capture_has(stream)) /* or has a pass, which does as well */
        return CUDA_SUCCESS;
    CUcontext context = context_of(stream);
    if (context == NULL || (!marker_knows(context, &gpu) && device_of_context(context, &gpu) != CUDA_SUCCESS))
        return CUDA_SUCCESS;
    if (gpu == SHARE_NO_GPU)
        return device_refusal();
    marker_context(context, gpu);
    if (stream == CU_STREAM_PER_THREAD)
        marker_own_streams();
    unsigned left = pass(gpu, context, stream, edition);
    for (uint32_t other = 0; several && other < MAX_GPUS; other++) {
        if (other != gpu && gate_is_used(other))
            gate_wait(other);
    }
    passes_give(&(pass_t){edition, gpu, left, stream, context});
    return CUDA_SUCCESS;
}
