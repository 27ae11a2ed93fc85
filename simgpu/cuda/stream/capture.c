/* Stream capture: work in a captured stream becomes nodes of a graph. A stream that waits for an event of a capture
 * joins the capture, until the stream in which it began ends it. */
#include "cuda/stream/capture.h"

#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/graph/graph.h"
#include "cuda/stream/stream.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUstream capturing; /* list of all captured streams */

/* With the lock held. */
static void join_capture(CUstream stream, CUgraph graph) {
    stream->capture = graph;
    stream->next_joined = capturing;
    capturing = stream;
}

/* With the lock held. `stream`: the stream that leaves; NULL: all streams captured into the graph. */
static void leave_capture(CUstream stream, CUgraph graph) {
    for (CUstream *link = &capturing; *link != NULL;) {
        CUstream one = *link;
        if ((stream != NULL && one != stream) || one->capture != graph) {
            link = &one->next_joined;
            continue;
        }
        *link = one->next_joined;
        one->capture = NULL;
    }
}

static CUresult begin(CUstream stream, CUgraph into) {
    if (stream_is_default(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    handle_check(stream, HANDLE_STREAM);
    handle_check(into, HANDLE_GRAPH);
    if (stream->capture != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph graph = into;
    CUresult result = graph != NULL ? driver_ready() : cuGraphCreate(&graph, 0);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    graph_begin_capture(graph, stream);
    join_capture(stream, graph);
    pthread_mutex_unlock(&mutex);
    graph_context(graph)->captures++;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    return mode >= 0 && mode <= 2 ? begin(stream, NULL) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    return cuStreamBeginCapture_v2(stream_of(stream, true), mode);
}

CUresult cuStreamBeginCapture(CUstream stream) {
    return begin(stream, NULL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *before, const void *edges,
                                     size_t count, int mode) {
    (void)before;
    (void)edges;
    (void)count;
    return graph != NULL && mode >= 0 && mode <= 2 ? begin(stream, graph) : CUDA_ERROR_INVALID_VALUE;
}

/* The program must capture the same graph as before; this is not checked, and the graph is built again. */
CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *callback, void *data) {
    (void)callback;
    (void)data;
    if (graph == NULL || mode < 0 || mode > 2)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = begin(stream, graph);
    if (result == CUDA_SUCCESS)
        graph_clear(graph);
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    if (!stream_is_capturing(stream) || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_capture_origin(stream->capture) != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    *graph = stream->capture;
    pthread_mutex_lock(&mutex);
    leave_capture(NULL, *graph);
    pthread_mutex_unlock(&mutex);
    graph_context(*graph)->captures--;
    return driver_ready();
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return cuStreamEndCapture(stream_of(stream, true), graph);
}

void capture_abandon(CUstream stream) {
    CUgraph graph = stream->capture;
    if (graph == NULL)
        return;
    if (graph_capture_origin(graph) == stream && cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS) {
        (void)cuGraphDestroy(graph);
        return;
    }
    pthread_mutex_lock(&mutex);
    leave_capture(stream, graph);
    pthread_mutex_unlock(&mutex);
}

CUresult capture_join(CUgraph graph, CUstream stream) {
    if (stream_is_default(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&mutex);
    const struct CUstream_st *one = capturing;
    while (one != NULL && one->capture != graph)
        one = one->next_joined;
    CUresult result = one == NULL                ? CUDA_ERROR_CAPTURED_EVENT
                      : stream->capture == NULL  ? CUDA_SUCCESS
                      : stream->capture == graph ? CUDA_SUCCESS
                                                 : CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (result == CUDA_SUCCESS && stream->capture == NULL)
        join_capture(stream, graph);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* The dependencies of the next node are not returned, since nodes run in the order in which they were added. */
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                   const CUgraphNode **before, size_t *count) {
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph found = stream_is_capturing(stream) ? stream->capture : NULL;
    *status = found != NULL;
    if (id != NULL && found != NULL)
        *id = graph_capture_id(found);
    if (graph != NULL)
        *graph = found;
    if (before != NULL)
        *before = NULL;
    if (count != NULL)
        *count = 0;
    return driver_ready();
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                   const CUgraphNode **before, const void **edges, size_t *count) {
    if (edges != NULL)
        *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, before, count);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id) {
    return cuStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags) {
    (void)nodes;
    (void)count;
    return stream_is_capturing(stream) && flags <= 1 ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes, const void *edges, size_t count,
                                              unsigned flags) {
    (void)edges;
    return cuStreamUpdateCaptureDependencies(stream, nodes, count, flags);
}

/* The thread's capture mode is stored without effect. */
CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    static _Thread_local int current;
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    int old = current;
    current = *mode;
    *mode = old;
    return driver_ready();
}
