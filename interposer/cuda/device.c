#include "cuda/device.h"

#include "base/fork.h"
#include "base/report.h"
#include "driver/driver.h"
#include "share/share.h"

#define MAX_DEVICES 64
#define UNCACHED 0u
#define NONE UINT32_MAX

/* The record's index plus one; 0: not queried. A device keeps its number while the process lives. */
static uint32_t records[MAX_DEVICES];
static bool reported[MAX_DEVICES]; /* that the device cannot be used */

static void device_after_fork(void) {
    for (unsigned i = 0; i < MAX_DEVICES; i++)
        records[i] = UNCACHED;
}
FORK_ON_CHILD(device_after_fork)

CUresult device_gpu(CUdevice device, uint32_t *gpu_p) {
    if (!share_is_mapped()) /* a hook that has not joined: fail closed */
        return CUDA_ERROR_SYSTEM_NOT_READY;
    bool fits = device >= 0 && device < MAX_DEVICES;
    uint32_t known = fits ? __atomic_load_n(&records[device], __ATOMIC_RELAXED) : UNCACHED;
    if (known == UNCACHED) {
        CUuuid uuid;
        CUresult result = REAL(cuDeviceGetUuid_v2)(&uuid, device);
        if (result == CUDA_ERROR_NOT_FOUND) /* before CUDA 11.4 */
            result = REAL(cuDeviceGetUuid)(&uuid, device);
        if (result != CUDA_SUCCESS)
            return result;
        uint32_t gpu = share_find_gpu(uuid.bytes);
        known = gpu != SHARE_NO_GPU ? gpu + 1 : NONE;
        if (fits)
            __atomic_store_n(&records[device], known, __ATOMIC_RELAXED);
    }
    *gpu_p = known != NONE ? known - 1 : SHARE_NO_GPU;
    return CUDA_SUCCESS;
}

CUresult device_current(uint32_t *gpu_p) {
    CUdevice device;
    CUresult result = REAL(cuCtxGetDevice)(&device);
    return result == CUDA_SUCCESS ? device_gpu(device, gpu_p) : result;
}

CUresult device_refusal(void) {
    CUdevice device;
    CUuuid gpu;
    if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS || device < 0 || device >= MAX_DEVICES ||
        __atomic_exchange_n(&reported[device], true, __ATOMIC_RELAXED))
        return CUDA_ERROR_NOT_PERMITTED;
    bool is_part = REAL(cuDeviceGetUuid)(&gpu, device) == CUDA_SUCCESS && share_find_gpu(gpu.bytes) != SHARE_NO_GPU;
    report("device %d cannot be used (CUDA_ERROR_NOT_PERMITTED): it is %s", (int)device,
           is_part ? "a MIG device, but this container has a share of the whole GPU"
                   : "not part of this container's share");
    return CUDA_ERROR_NOT_PERMITTED;
}

CUresult device_of_context(CUcontext context, uint32_t *gpu_p) {
    CUcontext popped;
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = device_current(gpu_p);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

CUresult device_place(place_t *place) {
    *place = (place_t){.gpu = SHARE_NO_GPU};
    CUresult result = device_current(&place->gpu);
    return result == CUDA_SUCCESS ? REAL(cuCtxGetCurrent)(&place->context) : result;
}

bool device_of_location(const CUmemLocation *location, CUdevice *device) {
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        *device = location->id;
    else if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
        *device = location->id & 0xff; /* the next byte has the domain */
    else
        return false;
    return true;
}
