/* The GPU's memory as CUDA reports it: total and free memory of the share. */
#include "cuda/device.h"
#include "driver/driver.h"
#include "memory/cache.h"
#include "memory/lingering.h"
#include "session/join.h"
#include "share/share.h"

static uint64_t min_u64(uint64_t left, uint64_t right) {
    return left < right ? left : right;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    uint32_t gpu;
    if (!session_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    CUresult result = REAL(cuMemGetInfo_v2)(free_bytes, total_bytes);
    if (result != CUDA_SUCCESS || (result = device_current(&gpu)) != CUDA_SUCCESS || gpu == SHARE_NO_GPU)
        return result;
    cache_refresh(gpu);
    lingering_poll(gpu);
    uint64_t limit_bytes = share_limit_bytes(gpu);
    uint64_t used_bytes = min_u64(share_used_bytes(gpu), limit_bytes);
    *total_bytes = min_u64(*total_bytes, limit_bytes);
    *free_bytes = min_u64(*free_bytes, limit_bytes - used_bytes);
    return CUDA_SUCCESS;
}

/* The variant from before CUDA 3.2 has 32 bits, and returns its maximum for larger values. */
CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes) {
    size_t wide_free_bytes, wide_total_bytes;
    CUresult result = cuMemGetInfo_v2(&wide_free_bytes, &wide_total_bytes);
    if (result == CUDA_SUCCESS) {
        *free_bytes = (unsigned)min_u64(wide_free_bytes, UINT32_MAX);
        *total_bytes = (unsigned)min_u64(wide_total_bytes, UINT32_MAX);
    }
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    uint32_t gpu;
    if (!session_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result != CUDA_SUCCESS || (result = device_gpu(device, &gpu)) != CUDA_SUCCESS || gpu == SHARE_NO_GPU)
        return result;
    *bytes = min_u64(*bytes, share_limit_bytes(gpu));
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    size_t wide_bytes;
    CUresult result = cuDeviceTotalMem_v2(&wide_bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = (unsigned)min_u64(wide_bytes, UINT32_MAX);
    return result;
}
