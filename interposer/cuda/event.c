#include "cuda/event.h"

#include "driver/driver.h"

/* Another thread's capture may begin at any moment, and what is asked here must not break it. */
CUresult event_make(CUcontext context, CUevent *event) {
    CUcontext popped;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
    result = REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
    if (exchanged)
        (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}
