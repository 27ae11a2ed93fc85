/* Waiting for the GPU. Afterwards pools release memory that they need not keep, and are charged for less. */
#include "driver/driver.h"
#include "memory/cache.h"

static CUresult waited(CUresult result) {
    cache_note_sync();
    return result;
}

CUresult cuStreamSynchronize(CUstream stream) {
    return waited(REAL(cuStreamSynchronize)(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return waited(REAL(cuStreamSynchronize_ptsz)(stream));
}

CUresult cuEventSynchronize(CUevent event) {
    return waited(REAL(cuEventSynchronize)(event));
}

CUresult cuCtxSynchronize(void) {
    return waited(REAL(cuCtxSynchronize)());
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
    return waited(REAL(cuCtxSynchronize_v2)(context));
}
