/* Captures: what a stream is given goes into a graph. */
#include "cuda_driver.h"

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    CUgraph *capture = stream_capture(stream);
    (void)mode;
    if (capture == NULL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (*capture != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuGraphCreate(capture, 0);
    if (result == CUDA_SUCCESS)
        graph_context(*capture)->captures++;
    return result;
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    return cuStreamBeginCapture_v2(stream, mode);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    CUgraph *capture = stream_capture(stream);
    if (capture == NULL || *capture == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    graph_context(*capture)->captures--;
    *graph = *capture;
    *capture = NULL;
    return driver_ready();
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return cuStreamEndCapture(stream, graph);
}

void capture_abandon(CUstream stream) {
    CUgraph graph;
    if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS)
        (void)cuGraphDestroy(graph);
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
