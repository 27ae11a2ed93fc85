/* Functions of the program that a stream calls when it has come to them. */
#include "cuda_errand.h"

typedef struct {
    CUhostFn function;
    void *data;
} call_t;

typedef struct {
    CUstreamCallback function;
    CUstream stream;
    void *data;
} callback_t;

static void call(void *what) {
    const call_t *it = what;
    it->function(it->data);
}

static void call_back(void *what) {
    const callback_t *it = what;
    it->function(it->stream, CUDA_SUCCESS, it->data);
}

static const errand_kind_t calling = {.act = call, .after_work = true};
static const errand_kind_t calling_back = {.act = call_back, .after_work = true};

static CUresult queue(CUstream stream, const errand_kind_t *kind, const void *what, size_t bytes) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    const stream_point_t point = {context, stream_end(context, stream, false)};
    return errand_queue(&point, kind, what, bytes) != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult host_function_call(CUstream stream, CUhostFn function, void *data) {
    const call_t it = {function, data};
    return queue(stream, &calling, &it, sizeof it);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph *capture = stream_capture(stream);
    if (capture == NULL || *capture == NULL)
        return host_function_call(stream, function, data);
    const CUDA_HOST_NODE_PARAMS parameters = {function, data};
    return graph_append_work(*capture, WORK_HOST, &parameters) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *data, unsigned flags) {
    if (function == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream_is_capturing(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const callback_t it = {function, stream, data};
    return queue(stream, &calling_back, &it, sizeof it);
}
