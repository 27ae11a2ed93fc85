/* Captures of streams: counted, and otherwise left alone. */
#include "capture.h"
#include "driver.h"
#include "fork.h"
#include "stream.h"

static unsigned captures;

void capture_after_fork(void) {
    captures = 0;
}

bool capture_any(void) {
    return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) > 0;
}

/* Streams that join a capture by waiting for an event of it are found by the driver's answer. One that cannot say,
 * because another stream's capture forbids the question, is none that may be waited for. */
bool capture_has(CUstream stream) {
    int status = 0;
    return capture_any() && (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != 0);
}

/* Counted before the driver is asked: nothing that would break the capture may be under way when it begins. */
static void begins(void) {
    __atomic_add_fetch(&captures, 1, __ATOMIC_SEQ_CST);
}

static void ends(void) {
    unsigned old = __atomic_load_n(&captures, __ATOMIC_SEQ_CST);
    while (old > 0 && !__atomic_compare_exchange_n(&captures, &old, old - 1, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
}

static CUresult begun(CUresult result) {
    if (result != CUDA_SUCCESS)
        ends();
    return result;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    begins();
    return begun(REAL(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    begins();
    return begun(REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

CUresult cuStreamBeginCapture(CUstream stream) {
    begins();
    return begun(REAL(cuStreamBeginCapture)(stream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    begins();
    return begun(REAL(cuStreamBeginCapture_ptsz)(stream));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, void *graph, const void *before, const void *edges, size_t count,
                                     int mode) {
    begins();
    return begun(REAL(cuStreamBeginCaptureToGraph)(stream, graph, before, edges, count, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, void *graph, const void *before, const void *edges,
                                          size_t count, int mode) {
    begins();
    return begun(REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, before, edges, count, mode));
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, void *graph, void *callback, void *data) {
    begins();
    return begun(REAL(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data));
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, void *graph, void *callback, void *data) {
    begins();
    return begun(REAL(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, callback, data));
}

typedef CUresult end_t(CUstream stream, void **graph);

/* A capture that was broken ends too, with an error; of a stream that was not capturing nothing ends. */
static CUresult end(end_t *real, CUstream stream, void **graph, bool per_thread) {
    bool before = stream_is_capturing(stream, per_thread);
    CUresult result = real(stream, graph);
    if (before && (result == CUDA_SUCCESS || !stream_is_capturing(stream, per_thread)))
        ends();
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, void **graph) {
    return end(REAL(cuStreamEndCapture), stream, graph, false);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, void **graph) {
    return end(REAL(cuStreamEndCapture_ptsz), stream, graph, true);
}
