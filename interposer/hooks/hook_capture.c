/* Captures of streams: counted, and otherwise left alone. One that nobody ends is over when its stream is destroyed, or
 * its context. */
#include "compute/marker.h"
#include "compute/streams.h"
#include "cuda/capture.h"
#include "cuda/stream.h"
#include "driver/driver.h"

static CUcontext begins(CUstream stream) {
    streams_capture(stream);
    CUcontext context = capture_begins(stream);
    marker_settle();
    return context;
}

static CUresult begun(CUresult result, CUstream stream, CUcontext context) {
    capture_begun(stream, context, result == CUDA_SUCCESS);
    return result;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    CUcontext context = begins(stream);
    return begun(REAL(cuStreamBeginCapture_v2)(stream, mode), stream, context);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    CUcontext context = begins(stream);
    return begun(REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode), stream, context);
}

CUresult cuStreamBeginCapture(CUstream stream) {
    CUcontext context = begins(stream);
    return begun(REAL(cuStreamBeginCapture)(stream), stream, context);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    CUcontext context = begins(stream);
    return begun(REAL(cuStreamBeginCapture_ptsz)(stream), stream, context);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, void *graph, const void *before, const void *edges, size_t count,
                                     int mode) {
    CUcontext context = begins(stream);
    return begun(REAL(cuStreamBeginCaptureToGraph)(stream, graph, before, edges, count, mode), stream, context);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, void *graph, const void *before, const void *edges,
                                          size_t count, int mode) {
    CUcontext context = begins(stream);
    return begun(REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, before, edges, count, mode), stream, context);
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, void *graph, void *callback, void *data) {
    CUcontext context = begins(stream);
    return begun(REAL(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data), stream, context);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, void *graph, void *callback, void *data) {
    CUcontext context = begins(stream);
    return begun(REAL(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, callback, data), stream, context);
}

typedef CUresult end_t(CUstream stream, void **graph);

/* A capture that was broken ends too, with an error; of a stream that was not capturing nothing ends. */
static CUresult end(end_t *real, CUstream stream, void **graph, bool per_thread) {
    bool before = stream_is_capturing(stream, per_thread);
    CUresult result = real(stream, graph);
    if (before && (result == CUDA_SUCCESS || !stream_is_capturing(stream, per_thread)))
        capture_ended(stream);
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, void **graph) {
    return end(REAL(cuStreamEndCapture), stream, graph, false);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, void **graph) {
    return end(REAL(cuStreamEndCapture_ptsz), stream, graph, true);
}

typedef CUresult destroy_t(CUstream stream);

/* Forgotten before, for after it the driver may use the same handle again at once. */
static CUresult destroy(destroy_t *real, CUstream stream) {
    capture_t capture = capture_take(stream);
    streams_seat_t *seat = streams_end(stream);
    CUresult result = real(stream);
    streams_ended(seat, stream, result == CUDA_SUCCESS);
    capture_return(&capture, result == CUDA_SUCCESS);
    return result;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    return destroy(REAL(cuStreamDestroy_v2), stream);
}

CUresult cuStreamDestroy(CUstream stream) {
    return destroy(REAL(cuStreamDestroy), stream);
}
