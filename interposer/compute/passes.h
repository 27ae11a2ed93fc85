/* Passes: a thread whose launch has been counted at the gate may launch a few times more on that GPU without being
 * counted, and in the same stream without being looked at. What was true of the first is taken to be true of them for
 * as long as the edition is the same, and whoever makes it untrue begins another one, which voids the passes of all
 * threads. */
#ifndef GPUSHARE_PASSES_H
#define GPUSHARE_PASSES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/stream.h"
#include "driver/driver.h"

/* Never 0, which is what threads begin with. Read before what a pass is given for is looked at. */
extern _Atomic uint64_t passes_generation;

/* Said after it has changed. */
void passes_revoke(void);

typedef struct {
    uint64_t generation;
    uint32_t gpu;
    unsigned remaining; /* launches that were counted and have not been made yet */
    CUstream stream;
    CUcontext context;
} pass_t;

/* How often the calling thread may launch on that GPU without being counted. */
unsigned passes_remaining(uint64_t generation, uint32_t gpu);

/* From now on so often, and in this stream, which works in this context, without being looked at. */
void passes_grant(const pass_t *pass);

/* The thread's own, in its own block of memory, where it is found without a call: the library is there before the first
 * thread is. */
extern _Thread_local __attribute__((tls_model("initial-exec"), visibility("hidden"))) pass_t passes_own;

static inline bool passes_is_current(CUcontext context) {
    CUcontext current;
    return REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context;
}

/* Whether the calling thread has a pass for a launch in this stream, which takes it. In line, for each launch asks. */
static inline bool passes_use(CUstream stream) {
    pass_t *own = &passes_own;
    if (own->remaining == 0 || own->stream != stream || own->generation != atomic_load(&passes_generation) ||
        !(stream_is_handle(stream) || passes_is_current(own->context)))
        return false;
    own->remaining--;
    return true;
}

#endif
