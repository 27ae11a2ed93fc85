/* Captures of streams: counted, and otherwise left alone. One that nobody ends is over when its stream is destroyed, or
 * its context. */
#include "capture.h"
#include "driver.h"
#include "fork.h"
#include "marker.h"
#include "stream.h"
#include "streams.h"
#include "table.h"

static unsigned captures;
static table_t captured = TABLE_INITIALIZER; /* that captures began in; owner: the context */

void capture_after_fork(void) {
    captures = 0;
    table_forget(&captured);
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

static void ends(void) {
    unsigned old = __atomic_load_n(&captures, __ATOMIC_SEQ_CST);
    while (old > 0 && !__atomic_compare_exchange_n(&captures, &old, old - 1, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
}

/* Default streams are never destroyed. */
static uint64_t key_of(CUstream stream) {
    return stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD ? (uint64_t)(uintptr_t)stream : 0;
}

/* What a stream that has gone without our seeing it has left ends here. */
static void note(CUstream stream, CUcontext context) {
    entry_t entry = {.key = key_of(stream), .owner = (uint64_t)(uintptr_t)context}, old;
    if (entry.key != 0 && table_put(&captured, &entry, &old) && old.key != 0)
        ends();
}

static bool forget(CUstream stream, entry_t *entry) {
    return table_take(&captured, key_of(stream), entry);
}

/* Counted before the driver is asked: nothing that would break the capture may be under way when it begins. */
static CUcontext begins(CUstream stream) {
    CUcontext context = NULL;
    streams_capture(stream);
    if (key_of(stream) != 0)
        (void)REAL(cuStreamGetCtx)(stream, &context);
    __atomic_add_fetch(&captures, 1, __ATOMIC_SEQ_CST);
    marker_settle();
    return context;
}

static CUresult begun(CUresult result, CUstream stream, CUcontext context) {
    if (result == CUDA_SUCCESS)
        note(stream, context);
    else
        ends();
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
    if (before && (result == CUDA_SUCCESS || !stream_is_capturing(stream, per_thread))) {
        entry_t entry;
        (void)forget(stream, &entry);
        ends();
    }
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
    entry_t entry, old;
    bool capturing = capture_any() && forget(stream, &entry);
    streams_seat_t *seat = streams_end(stream);
    CUresult result = real(stream);
    streams_ended(seat, stream, result == CUDA_SUCCESS);
    if (capturing && result == CUDA_SUCCESS)
        ends();
    else if (capturing)
        (void)table_put(&captured, &entry, &old); /* it has just been taken, so there is room */
    return result;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    return destroy(REAL(cuStreamDestroy_v2), stream);
}

CUresult cuStreamDestroy(CUstream stream) {
    return destroy(REAL(cuStreamDestroy), stream);
}

void capture_forget(CUcontext context) {
    entry_t entry;
    while (context != NULL && capture_any() && table_take_owned(&captured, (uint64_t)(uintptr_t)context, &entry))
        ends();
}
