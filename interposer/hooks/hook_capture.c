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

#define BEGIN(symbol, parameters, ...)                                                                                 \
    CUresult symbol parameters {                                                                                       \
        CUcontext context = begins(stream);                                                                            \
        return begun(REAL(symbol)(__VA_ARGS__), stream, context);                                                      \
    }
#define BEGIN_TO_GRAPH(symbol)                                                                                         \
    BEGIN(symbol, (CUstream stream, void *graph, const void *before, const void *edges, size_t count, int mode),       \
          stream, graph, before, edges, count, mode)
#define BEGIN_AGAIN(symbol)                                                                                            \
    BEGIN(symbol, (CUstream stream, int mode, void *graph, void *callback, void *data), stream, mode, graph, callback, \
          data)
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, int mode), stream, mode)
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), stream, mode)
BEGIN(cuStreamBeginCapture, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), stream)
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph)
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz)
BEGIN_AGAIN(cuStreamBeginRecaptureToGraph)
BEGIN_AGAIN(cuStreamBeginRecaptureToGraph_ptsz)

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
