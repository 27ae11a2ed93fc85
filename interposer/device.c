#include "device.h"

#include "driver.h"
#include "fork.h"
#include "share.h"

#define REMEMBERED 64
#define UNKNOWN 0u
#define NONE UINT32_MAX

/* The record plus one, so that zero is "not asked yet". Devices keep their numbers while a process lives. */
static uint32_t remembered[REMEMBERED];

void device_after_fork(void) {
    for (unsigned i = 0; i < REMEMBERED; i++)
        remembered[i] = UNKNOWN;
}

CUresult device_gpu(CUdevice device, uint32_t *gpu_p) {
    bool fits = device >= 0 && device < REMEMBERED;
    uint32_t known = fits ? __atomic_load_n(&remembered[device], __ATOMIC_RELAXED) : UNKNOWN;
    if (known == UNKNOWN) {
        CUuuid uuid;
        CUresult result = REAL(cuDeviceGetUuid_v2)(&uuid, device);
        if (result == CUDA_ERROR_NOT_FOUND) /* before CUDA 11.4 */
            result = REAL(cuDeviceGetUuid)(&uuid, device);
        if (result != CUDA_SUCCESS)
            return result;
        uint32_t gpu = share_gpu(uuid.bytes);
        known = gpu != SHARE_NO_GPU ? gpu + 1 : NONE;
        if (fits)
            __atomic_store_n(&remembered[device], known, __ATOMIC_RELAXED);
    }
    *gpu_p = known != NONE ? known - 1 : SHARE_NO_GPU;
    return CUDA_SUCCESS;
}

CUresult device_current(uint32_t *gpu_p) {
    CUdevice device;
    CUresult result = REAL(cuCtxGetDevice)(&device);
    return result == CUDA_SUCCESS ? device_gpu(device, gpu_p) : result;
}

bool device_of_location(const CUmemLocation *location, CUdevice *device) {
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        *device = location->id;
    else if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
        *device = location->id & 0xff; /* the domain is in the next byte */
    else
        return false;
    return true;
}
