/* Graphs: kernels that are launched together. A graph is how long its kernels take, one after another. */
#include <stdlib.h>

#include "cuda_driver.h"

struct CUgraph_st {
    CUcontext context;
    _Atomic uint64_t duration_ns;
};

struct CUgraphExec_st {
    uint64_t duration_ns;
};

static CUresult make(CUgraph *graph) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    *graph = calloc(1, sizeof **graph);
    if (*graph == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*graph)->context = context;
    return CUDA_SUCCESS;
}

void graph_append(CUgraph graph, uint64_t duration_ns) {
    graph->duration_ns += duration_ns;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    return graph != NULL && flags == 0 ? make(graph) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDestroy(CUgraph graph) {
    free(graph);
    return graph != NULL ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

/* Nodes run one after another, whatever they depend on: that is always a right order. */
CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *parameters) {
    (void)before;
    (void)count;
    if (node == NULL || graph == NULL || parameters == NULL || parameters->func == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    graph_append(graph, kernel_duration_ns(parameters->func));
    *node = (CUgraphNode)graph;
    return driver_ready();
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    (void)flags;
    if (exec == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *exec = calloc(1, sizeof **exec);
    if (*exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*exec)->duration_ns = graph->duration_ns;
    return driver_ready();
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    free(exec);
    return exec != NULL ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    (void)stream;
    return exec != NULL ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return cuGraphUpload(exec, stream);
}

static CUresult launch(CUgraphExec exec, CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = exec != NULL ? context_current(&context) : CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? launch_submit(context, stream, per_thread, exec->duration_ns) : result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, true);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    CUgraph *capture = stream_capture(stream);
    (void)mode;
    if (capture == NULL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (*capture != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = make(capture);
    if (result == CUDA_SUCCESS)
        (*capture)->context->captures++;
    return result;
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    return cuStreamBeginCapture_v2(stream, mode);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    CUgraph *capture = stream_capture(stream);
    if (capture == NULL || *capture == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    (*capture)->context->captures--;
    *graph = *capture;
    *capture = NULL;
    return driver_ready();
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return cuStreamEndCapture(stream, graph);
}

/* Each thread has a mode, which says what it may do while another one captures. Nothing here depends on it. */
CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    static _Thread_local int current;
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    int old = current;
    current = *mode;
    *mode = old;
    return driver_ready();
}
