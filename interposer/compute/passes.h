/* Passes: a thread whose launch has been counted at the gate may launch a few times more in the same stream without
 * being looked at. What was true of the first is taken to be true of them for as long as the edition is the same, and
 * whoever makes it untrue begins another one, which voids the passes of all threads. */
#ifndef GPUSHARE_PASSES_H
#define GPUSHARE_PASSES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/stream.h"
#include "driver/driver.h"

/* Never 0, which is what threads begin with. Read before what a pass is given for is looked at. */
extern _Atomic uint64_t passes_edition;

/* Said after it has changed. */
void passes_recall(void);

/* The calling thread may launch so many times more in this stream, which works in this context. */
void passes_give(uint64_t edition, CUstream stream, CUcontext context, unsigned launches);

/* The thread's own: launches that were counted for it and that it has not made yet. In the thread's own block of
 * memory, where it is found without a call: the library is there before the first thread is. */
typedef struct {
    uint64_t edition;
    CUstream stream;
    CUcontext context;
    unsigned left;
} pass_t;
extern _Thread_local __attribute__((tls_model("initial-exec"), visibility("hidden"))) pass_t passes_mine;

static inline bool passes_is_current(CUcontext context) {
    CUcontext current;
    return REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context;
}

/* Whether the calling thread has a pass for a launch in this stream, which takes it. In line, for each launch asks. */
static inline bool passes_take(CUstream stream) {
    pass_t *mine = &passes_mine;
    if (mine->left == 0 || mine->stream != stream || mine->edition != atomic_load(&passes_edition) ||
        !(stream_is_handle(stream) || passes_is_current(mine->context)))
        return false;
    mine->left--;
    return true;
}

#endif
