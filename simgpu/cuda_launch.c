/* The ways to launch: all of them come to one, which takes the launch, or records it if the stream is being captured.
 */
#include "cuda_driver.h"

static void raise_to(_Atomic uint64_t *mark, uint64_t at_least) {
    uint64_t old = *mark;
    while (old < at_least && !atomic_compare_exchange_weak(mark, &old, at_least))
        continue;
}

uint64_t stream_put(CUcontext context, CUstream stream, bool per_thread, gpu_work_t work) {
    work.context = context->number;
    work.order = stream_order(stream, per_thread);
    uint64_t mark = timeline_queue(context->gpu, stream_end(context, stream, per_thread), &work);
    raise_to(&context->last_mark, mark_make(MARK_CONTEXT, context->number, mark_number(mark)));
    if (work.order == ORDER_BLOCKING)
        raise_to(&context->blocking_mark, mark_make(MARK_BLOCKING, context->number, mark_number(mark)));
    return mark;
}

CUresult launch_submit(CUcontext context, CUstream stream, bool per_thread, const kernel_t *kernel) {
    CUgraph *capture = stream_capture(stream);
    if (capture != NULL && *capture != NULL) {
        if (kernel->meeting > 1)
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        graph_append(*capture, kernel->duration_ns);
        return CUDA_SUCCESS;
    }
    if (kernel->meeting > 1)
        return meeting_launch(context, stream, per_thread, kernel);
    (void)stream_put(context, stream, per_thread,
                     (gpu_work_t){.duration_ns = kernel->duration_ns, .percent = kernel->percent});
    return CUDA_SUCCESS;
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                   CUstream stream, void **parameters) {
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters,
                          NULL);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                        CUstream stream, void **parameters) {
    return cuLaunchKernel_ptsz(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                               parameters, NULL);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags) {
    CUresult result = launches != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    (void)flags;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = kernel_launch(launches[i].function, launches[i].hStream, false, launches[i].kernelParams);
    return result;
}

CUresult cuLaunch(CUfunction function) {
    return kernel_launch(function, NULL, false, NULL);
}

CUresult cuLaunchGrid(CUfunction function, int width, int height) {
    return width > 0 && height > 0 ? kernel_launch(function, NULL, false, NULL) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    return width > 0 && height > 0 ? kernel_launch(function, stream, false, NULL) : CUDA_ERROR_INVALID_VALUE;
}
