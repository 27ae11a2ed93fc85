#define _GNU_SOURCE
#include "cuda/stream.h"

#include "base/clock.h"
#include "cuda/capture.h"
#include "cuda/device.h"
#include "driver/driver.h"

#define MAX_POLLS 2000
#define POLL_NS 500000

CUresult stream_place(CUstream stream, place_t *place, CUdevice *device) {
    CUcontext context;
    CUcontext popped;
    CUresult result = device_place(place);
    CUcontext current = place->context;
    place->context = NULL;
    if (result == CUDA_SUCCESS)
        result = REAL(cuCtxGetDevice)(device);
    if (result != CUDA_SUCCESS || !stream_is_handle(stream))
        return result;
    if (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || context == current)
        return CUDA_SUCCESS;
    result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxGetDevice)(device);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return result == CUDA_SUCCESS ? device_gpu(*device, &place->gpu) : result;
}

typedef CUresult is_capturing_t(CUstream stream, int *status);

/* The legacy stream cannot be captured, and querying it would disturb another capture. */
bool stream_is_capturing(CUstream stream, bool per_thread) {
    int status = 0;
    if (stream == CU_STREAM_LEGACY || (stream == NULL && !per_thread))
        return false;
    is_capturing_t *ask = per_thread ? REAL(cuStreamIsCapturing_ptsz) : REAL(cuStreamIsCapturing);
    return ask(stream, &status) == CUDA_SUCCESS && status != 0;
}

/* Whether all work of the context has ended; before CUDA 12.5, all work of the stream. */
static bool is_done(CUevent event, CUstream stream, bool per_thread) {
    CUresult result = event != NULL ? REAL(cuEventQuery)(event)
                      : per_thread  ? REAL(cuStreamQuery_ptsz)(stream)
                                    : REAL(cuStreamQuery)(stream);
    return result != CUDA_ERROR_NOT_READY;
}

/* Polls, because waiting in the driver could block forever: the GPU may be waiting for this thread's next call.
 * During a capture nothing is queried. */
static void wait_relaxed(CUcontext context, CUstream stream, bool per_thread) {
    CUevent event = NULL;
    if (REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        event = NULL;
    else if (REAL(cuCtxRecordEvent)(context, event) != CUDA_SUCCESS) {
        (void)REAL(cuEventDestroy_v2)(event);
        event = NULL;
    }
    for (unsigned i = 0; i < MAX_POLLS && !capture_any() && !is_done(event, stream, per_thread); i++)
        pause_ns(POLL_NS);
    if (event != NULL)
        (void)REAL(cuEventDestroy_v2)(event);
}

void stream_wait(CUstream stream, bool per_thread) {
    CUcontext context;
    if (capture_any() || REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
        return;
    capture_mode_t relaxed = capture_relax();
    wait_relaxed(context, stream, per_thread);
    capture_restore_mode(relaxed);
}
