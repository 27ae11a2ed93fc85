#include "cuda/capture.h"

#include "base/fork.h"
#include "base/table.h"
#include "driver/driver.h"

static unsigned captures;
static table_t captured = TABLE_INITIALIZER; /* streams in which a capture began; owner: the context */

static void capture_after_fork(void) {
    captures = 0;
    table_clear(&captured);
}
FORK_ON_CHILD(capture_after_fork)

bool capture_any(void) {
    return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) > 0;
}

/* A stream joins a capture by waiting for one of its events, so only the driver knows. If the driver cannot answer,
 * because another stream's capture forbids the query, the launch must not wait either. */
bool capture_includes(CUstream stream) {
    int status = 0;
    return capture_any() && (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != 0);
}

capture_mode_t capture_relax(void) {
    capture_mode_t relaxed = {.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    relaxed.changed = REAL(cuThreadExchangeStreamCaptureMode)(&relaxed.mode) == CUDA_SUCCESS;
    return relaxed;
}

void capture_restore_mode(capture_mode_t relaxed) {
    if (relaxed.changed)
        (void)REAL(cuThreadExchangeStreamCaptureMode)(&relaxed.mode);
}

/* Default streams are never destroyed. */
static uint64_t key_of(CUstream stream) {
    return stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD ? (uint64_t)(uintptr_t)stream : 0;
}

CUcontext capture_starting(CUstream stream) {
    CUcontext context = NULL;
    if (key_of(stream) != 0)
        (void)REAL(cuStreamGetCtx)(stream, &context);
    __atomic_add_fetch(&captures, 1, __ATOMIC_SEQ_CST);
    return context;
}

static void decrement(void) {
    unsigned old = __atomic_load_n(&captures, __ATOMIC_SEQ_CST);
    while (old > 0 && !__atomic_compare_exchange_n(&captures, &old, old - 1, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
}

/* An entry left by a stream that was destroyed without passing our hooks ends here. */
static void record(CUstream stream, CUcontext context) {
    entry_t entry = {.key = key_of(stream), .owner = (uint64_t)(uintptr_t)context}, old;
    if (entry.key != 0 && table_put(&captured, &entry, &old) && old.key != 0)
        decrement();
}

void capture_started(CUstream stream, CUcontext context, bool begun) {
    if (begun)
        record(stream, context);
    else
        decrement();
}

void capture_ended(CUstream stream) {
    entry_t entry;
    (void)table_remove(&captured, key_of(stream), &entry);
    decrement();
}

capture_t capture_begin_destroy(CUstream stream) {
    entry_t entry;
    bool taken = capture_any() && table_remove(&captured, key_of(stream), &entry);
    return taken ? (capture_t){.stream = stream, .context = (CUcontext)(uintptr_t)entry.owner, .found = true}
                 : (capture_t){.found = false};
}

void capture_end_destroy(const capture_t *capture, bool ended) {
    if (capture->found && ended)
        decrement();
    else if (capture->found)
        record(capture->stream, capture->context);
}

void capture_drop(CUcontext context) {
    entry_t entry;
    size_t from = 0;
    while (context != NULL && capture_any() &&
           table_remove_owned(&captured, (uint64_t)(uintptr_t)context, &entry, &from))
        decrement();
}
