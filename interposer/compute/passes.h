/* Passes: a thread whose launch was counted at the gate may make a few more launches on that GPU without being
 * counted, and in the same stream without any other check. The checks' results hold as long as the generation is the
 * same. Any change that would invalidate them starts a new generation, which voids the passes of all threads. */
#ifndef GPUSHARE_PASSES_H
#define GPUSHARE_PASSES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/stream.h"
#include "driver/driver.h"

/* Never 0, the initial value in threads. Read it before the checks whose results a pass records. */
extern _Atomic uint64_t passes_generation;

/* Call this after the change. */
void passes_revoke(void);

typedef struct {
    uint64_t generation;
    uint32_t gpu;
    unsigned remaining; /* launches counted but not made yet */
    CUstream stream;
    CUcontext context;
} pass_t;

/* Return how many launches the calling thread may make on that GPU without being counted. */
unsigned passes_remaining(uint64_t generation, uint32_t gpu);

/* Give the calling thread a pass for launches in this stream, which runs in this context. */
void passes_grant(const pass_t *pass);

/* The thread's pass. It is in initial thread-local storage, found without a call, because the library is loaded
 * before any thread starts. */
extern _Thread_local __attribute__((tls_model("initial-exec"), visibility("hidden"))) pass_t passes_own;

static inline bool passes_is_current(CUcontext context) {
    CUcontext current;
    return REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context;
}

/* Use the calling thread's pass for a launch in this stream, if it has one. Inline, because every launch does this. */
static inline bool passes_use(CUstream stream) {
    pass_t *own = &passes_own;
    if (own->remaining == 0 || own->stream != stream || own->generation != atomic_load(&passes_generation) ||
        !(stream_is_handle(stream) || passes_is_current(own->context)))
        return false;
    own->remaining--;
    return true;
}

#endif
