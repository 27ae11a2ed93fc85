#include "memory/cost.h"

#include <inttypes.h>

#include "base/report.h"
#include "cuda/device.h"
#include "memory/charge.h"
#include "share/share.h"

#define MIB_SHIFT 20

static CUresult refuse(const cost_t *cost) {
    uint64_t limit_bytes = share_limit_bytes(cost->place.gpu);
    uint64_t used_bytes = share_used_bytes(cost->place.gpu);
    report("no memory for a CUDA context: it needs about %" PRIu64 " MiB on this GPU, and %" PRIu64
           " of the container's %" PRIu64
           " MiB are in use: end some of its processes, or request more (gpushare.io/memory)",
           cost->bytes >> MIB_SHIFT, used_bytes >> MIB_SHIFT, limit_bytes >> MIB_SHIFT);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cost_begin(cost_t *cost, CUdevice device) {
    *cost = COST_NONE;
    /* The driver itself refuses an invalid device. On a GPU outside the share nothing can be allocated anyway. */
    if (device_gpu(device, &cost->place.gpu) != CUDA_SUCCESS || cost->place.gpu == SHARE_NO_GPU)
        return CUDA_SUCCESS;
    cost->bytes = share_context_bytes(cost->place.gpu);
    return cost->bytes == 0 || charge_silently(&cost->place, cost->bytes) == CUDA_SUCCESS ? CUDA_SUCCESS : refuse(cost);
}

/* A context is an object in host memory, so no device pointer equals its address, which therefore serves as the key.
 * The next addresses are keys of its limits (hook_limit.c). */
CUresult cost_end(cost_t *cost, CUresult result, const CUcontext *context) {
    if (cost->bytes == 0)
        return result;
    if (result != CUDA_SUCCESS) {
        share_refund(cost->place.gpu, cost->bytes);
        return result;
    }
    cost->place.context = *context;
    /* If this fails, the bytes stay charged: the safe side. */
    (void)charge_record(&cost->place, (uint64_t)(uintptr_t)*context, cost->bytes);
    return CUDA_SUCCESS;
}
