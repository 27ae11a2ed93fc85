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

/* Launches per pass on a GPU whose launches need not be counted, while another GPU's are. */
#define UNCOUNTED_PASS_SIZE 64u

void launch_add_context(CUcontext context, CUdevice device) {
    uint32_t gpu;
    if (device_gpu(device, &gpu) != CUDA_SUCCESS || gpu == SHARE_NO_GPU)
        return;
    marker_add(context, gpu);
    gate_mark_used(gpu);
}

void launch_add_device(CUdevice device) {
    uint32_t gpu;
    if (device_gpu(device, &gpu) == CUDA_SUCCESS && gpu != SHARE_NO_GPU)
        gate_mark_used(gpu);
}

/* Return how many launches to count at once: more than one if nothing has to be done between them. */
static unsigned pass_size(uint32_t gpu) {
    if (!gate_is_open(gpu))
        return 1;
    return gate_is_counted(gpu) ? flow_pass_size(gpu, gate_passed(gpu)) : UNCOUNTED_PASS_SIZE;
}

/* Pass the gate with one launch. Returns how many more are already counted. */
static unsigned enter(uint32_t gpu, CUcontext context, CUstream stream, uint64_t generation) {
    unsigned count = passes_remaining(generation, gpu); /* from a launch in another stream */
    if (count > 0)
        return count - 1;
    count = pass_size(gpu);
    uint64_t launches = gate_enter(gpu, count);
    if (gate_is_counted(gpu))
        flow_launch(gpu, context, stream, launches);
    gate_wait(gpu); /* it may have closed while the flow waited */
    return count - 1;
}

/* Return the context in which the stream's work runs; for a default stream, the current one. NULL: there is none,
 * and the real function will report that. */
static CUcontext context_of(CUstream stream) {
    CUcontext context = NULL;
    if (stream_is_handle(stream) && REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS && context != NULL)
        return context;
    return REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

CUresult launch_admit(CUstream stream, bool multi_device) {
    uint32_t gpu;
    uint64_t generation = atomic_load(&passes_generation);
    if (capture_includes(stream)) /* or the thread has a pass, which is fine too */
        return CUDA_SUCCESS;
    CUcontext context = context_of(stream);
    if (context == NULL || (!marker_find(context, &gpu) && device_of_context(context, &gpu) != CUDA_SUCCESS))
        return CUDA_SUCCESS;
    if (gpu == SHARE_NO_GPU)
        return device_refusal();
    marker_add(context, gpu);
    if (stream == CU_STREAM_PER_THREAD)
        marker_use_thread_streams();
    unsigned remaining = enter(gpu, context, stream, generation);
    for (uint32_t other = 0; multi_device && other < MAX_GPUS; other++) {
        if (other != gpu && gate_is_used(other))
            gate_wait(other);
    }
    passes_grant(&(pass_t){generation, gpu, remaining, stream, context});
    return CUDA_SUCCESS;
}
