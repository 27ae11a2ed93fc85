/* Streams: creation, captures and destruction. Captures are counted; otherwise they pass through unchanged. A capture
 * that the program never ends is over when its stream or context is destroyed. */
#include "compute/marker.h"
#include "compute/streams.h"
#include "cuda/capture.h"
#include "cuda/stream.h"
#include "driver/driver.h"
#include "session/join.h"

static CUresult created(CUresult result, const CUstream *stream) {
    if (result == CUDA_SUCCESS && session_join())
        streams_add(*stream);
    return result;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return created(REAL(cuStreamCreate)(stream, flags), stream);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return created(REAL(cuStreamCreateWithPriority)(stream, flags, priority), stream);
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx context, unsigned flags, int priority) {
    return created(REAL(cuGreenCtxStreamCreate)(stream, context, flags, priority), stream);
}

static CUcontext starting(CUstream stream) {
    streams_capture(stream);
    CUcontext context = capture_starting(stream);
    marker_wait_idle();
    return context;
}

static CUresult started(CUresult result, CUstream stream, CUcontext context) {
    capture_started(stream, context, result == CUDA_SUCCESS);
    return result;
}

#define BEGIN(symbol, parameters, ...)                                                                                 \
    CUresult symbol parameters {                                                                                       \
        CUcontext context = starting(stream);                                                                          \
        return started(REAL(symbol)(__VA_ARGS__), stream, context);                                                    \
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

/* A broken capture also ends, with an error. A stream without a capture has nothing to end. */
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

/* Removed first, because after the call the driver may reuse the handle at once. */
static CUresult destroy(destroy_t *real, CUstream stream) {
    capture_t capture = capture_begin_destroy(stream);
    streams_slot_t *slot = streams_begin_destroy(stream);
    CUresult result = real(stream);
    streams_end_destroy(slot, stream, result == CUDA_SUCCESS);
    capture_end_destroy(&capture, result == CUDA_SUCCESS);
    return result;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    return destroy(REAL(cuStreamDestroy_v2), stream);
}

CUresult cuStreamDestroy(CUstream stream) {
    return destroy(REAL(cuStreamDestroy), stream);
}
