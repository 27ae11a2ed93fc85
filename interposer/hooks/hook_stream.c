/* Streams as they are made; how they end is in hook_capture.c. */
#include "compute/streams.h"
#include "driver/driver.h"
#include "session/join.h"

static CUresult made(CUresult result, const CUstream *stream) {
    if (result == CUDA_SUCCESS && session_join())
        streams_made(*stream);
    return result;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return made(REAL(cuStreamCreate)(stream, flags), stream);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return made(REAL(cuStreamCreateWithPriority)(stream, flags, priority), stream);
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx context, unsigned flags, int priority) {
    return made(REAL(cuGreenCtxStreamCreate)(stream, context, flags, priority), stream);
}
