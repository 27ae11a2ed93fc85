/* Launches of kernels: into a stream, or into the graph that it is captured into.
 *
 * Kernels of collectives wait for each other: each begins, occupies its part of its GPU until the whole group has
 * begun, and only then runs. A group with a key includes kernels of all processes on the node, one without a key
 * only those of its process. */
#include "cuda/kernel/launch.h"

#include <stdlib.h>

#include "cuda/device/context.h"
#include "cuda/graph/graph.h"
#include "cuda/stream/action.h"
#include "cuda/stream/stream.h"
#include "time/rendezvous.h"

typedef struct {
    rendezvous_t *page;
    uint64_t key;
    unsigned size;
    bool arrived;
    rendezvous_wait_t place;
} group_t;

static bool arrive(void *argument) {
    group_t *group = argument;
    if (!group->arrived)
        group->arrived = rendezvous_arrive(group->page, group->key, group->size, &group->place);
    return group->arrived && rendezvous_has_met(&group->place);
}

static CUresult launch_in_group(CUcontext context, CUstream stream, bool per_thread, const kernel_t *kernel) {
    rendezvous_t *page = kernel->key != 0 ? rendezvous_open() : rendezvous_own();
    if (page == NULL)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    group_t *group = malloc(sizeof *group);
    if (group == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *group =
        (group_t){.page = page, .key = kernel->key != 0 ? kernel->key : kernel->group_size, .size = kernel->group_size};
    const gpu_work_t work = {.duration_ns = kernel->duration_ns, .percent = kernel->percent};
    return stream_enqueue_work(context, stream, per_thread, work, ACTOR_GPU, arrive, group);
}

CUresult launch_submit(CUcontext context, CUstream stream, bool per_thread, const kernel_t *kernel) {
    CUgraph *capture = stream_capture(stream);
    if (capture != NULL && *capture != NULL) {
        if (kernel->group_size > 1)
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        graph_append(*capture, kernel->duration_ns);
        return CUDA_SUCCESS;
    }
    if (kernel->group_size > 1)
        return launch_in_group(context, stream, per_thread, kernel);
    const gpu_work_t work = {.duration_ns = kernel->duration_ns, .percent = kernel->percent, .faults = kernel->faults};
    (void)stream_queue(context, stream, per_thread, work);
    return CUDA_SUCCESS;
}

/* A module's kernels run in the current context. A library's kernels run in the stream's context, which for default
 * streams is the current one. */
static CUresult context_for(CUfunction function, CUstream stream, CUcontext *context_p) {
    bool by_stream = function != NULL && function->module->context == NULL;
    return by_stream ? stream_context(stream, context_p) : context_current(context_p);
}

/* Whether the kernel and the stream belong to the context. A library's kernels belong to all contexts. */
static bool belongs(CUfunction function, CUstream stream, CUcontext context) {
    CUcontext of_stream;
    const struct CUmod_st *module = function->module;
    return (module->context == NULL || (module->context == context && module->context_id == context->id)) &&
           stream_context(stream, &of_stream) == CUDA_SUCCESS && of_stream == context;
}

static CUresult launch(CUfunction function, CUstream stream, bool per_thread, bool has_size, void **parameters) {
    CUcontext context;
    handle_check(function, HANDLE_FUNCTION);
    CUresult result = context_for(function, stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (function == NULL || !belongs(function, stream, context))
        return CUDA_ERROR_INVALID_HANDLE;
    kernel_t kernel = function->kernel;
    if (!has_size || !kernel_duration(function, context->gpu, parameters, &kernel.duration_ns))
        return CUDA_ERROR_INVALID_VALUE;
    result = launch_submit(context, stream, per_thread, &kernel);
    if (result == CUDA_SUCCESS && kernel.faults && !stream_is_capturing(stream))
        context->fault = *stream_end(context, stream, per_thread);
    return result;
}

static CUresult kernel_launch(CUfunction function, CUstream stream, bool per_thread, void **parameters) {
    return launch(function, stream, per_thread, true, parameters);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters,
                        void **extra) {
    (void)shared_bytes;
    (void)extra;
    return launch(function, stream, false, grid_x && grid_y && grid_z && block_x && block_y && block_z, parameters);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                             void **parameters, void **extra) {
    (void)shared_bytes;
    (void)extra;
    return launch(function, stream, true, grid_x && grid_y && grid_z && block_x && block_y && block_z, parameters);
}

static CUresult launch_configured(const CUlaunchConfig *config, CUfunction function, bool per_thread,
                                  void **parameters) {
    if (config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool has_size = config->gridDimX && config->gridDimY && config->gridDimZ && config->blockDimX &&
                    config->blockDimY && config->blockDimZ;
    return launch(function, config->hStream, per_thread, has_size, parameters);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)extra;
    return launch_configured(config, function, false, parameters);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)extra;
    return launch_configured(config, function, true, parameters);
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
