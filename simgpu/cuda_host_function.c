/* Functions of the program that a stream calls when it has come to them. */
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

typedef struct {
    CUhostFn function;
    void *data;
} call_t;

typedef struct {
    CUstreamCallback function;
    CUstream stream;
    void *data;
} callback_t;

static bool call(void *what) {
    const call_t *it = what;
    it->function(it->data);
    return true;
}

static bool call_back(void *what) {
    const callback_t *it = what;
    it->function(it->stream, CUDA_SUCCESS, it->data);
    return true;
}

static CUresult queue(CUstream stream, stream_action_t act, const void *what, size_t bytes) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    void *kept = malloc(bytes);
    if (kept == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(kept, what, bytes);
    return stream_enqueue(context, stream, false, ACTOR_HOST, act, kept);
}

static CUresult host_function_call(CUstream stream, CUhostFn function, void *data) {
    const call_t it = {function, data};
    return queue(stream, call, &it, sizeof it);
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
    return queue(stream, call_back, &it, sizeof it);
}
