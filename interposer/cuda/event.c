#include "cuda/event.h"

#include "cuda/capture.h"
#include "driver/driver.h"

CUresult event_create(CUcontext context, CUevent *event) {
    CUcontext popped;
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    capture_mode_t relaxed = capture_relax();
    result = REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
    capture_restore_mode(relaxed);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}
