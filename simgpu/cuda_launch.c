/* The ways to launch: all of them come to one, which takes the launch, or records it if the stream is being captured.
 */
#include "cuda_errand.h"
#include "timeline.h"

/* A context takes so many launches; the next one waits until there is room, as on real hardware. */
static void wait_for_room(CUcontext context, uint64_t launch) {
    if (launch >= QUEUE_DEPTH)
        timeline_wait(context->gpu, context->marks[launch % QUEUE_DEPTH]);
}

typedef struct {
    stream_point_t point;
    uint64_t duration_ns;
    unsigned meeting;
} launch_t;

static void submit(void *what) {
    const launch_t *one = what;
    CUcontext context = one->point.context;
    uint64_t launch = atomic_fetch_add(&context->launches, 1);
    wait_for_room(context, launch);
    uint64_t mark = timeline_queue(context->gpu, one->duration_ns, one->meeting);
    context->marks[launch % QUEUE_DEPTH] = mark;
    stream_extend(context, one->point.end, mark);
}

static const errand_kind_t submitting = {.act = submit};

CUresult launch_submit(CUcontext context, CUstream stream, bool per_thread, uint64_t duration_ns, unsigned meeting) {
    CUgraph *capture = stream_capture(stream);
    if (capture != NULL && *capture != NULL) {
        if (meeting > 1)
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        graph_append(*capture, duration_ns);
        return CUDA_SUCCESS;
    }
    launch_t launch = {{context, stream_end(context, stream, per_thread)}, duration_ns, meeting};
    if (errand_last(launch.point.end) == 0)
        submit(&launch);
    else if (errand_queue(&launch.point, &submitting, &launch, sizeof launch) == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
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
