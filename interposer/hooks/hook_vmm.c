/* Physical memory by handle: creating, mapping, and sharing with other processes. */
#include "cuda/device.h"
#include "driver/driver.h"
#include "driver/refusal.h"
#include "memory/charge.h"
#include "memory/physical.h"
#include "session/join.h"
#include "share/share.h"

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                       uint64_t flags, uint32_t gpu) {
    place_t place = {.gpu = gpu};
    CUresult result = charge_begin(&place, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (result != CUDA_SUCCESS) {
        share_refund(gpu, bytes);
        return result;
    }
    if (physical_create(*handle, bytes, gpu))
        return CUDA_SUCCESS;
    if (REAL(cuMemRelease)(*handle) == CUDA_SUCCESS)
        share_refund(gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Works without a context; the properties name the device. */
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     uint64_t flags) {
    uint32_t gpu;
    CUdevice device;
    if (!session_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (properties == NULL || (properties->location.type >= CU_MEM_LOCATION_TYPE_HOST &&
                               properties->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT))
        return REAL(cuMemCreate)(handle, bytes, properties, flags); /* an error, or host memory */
    if (!device_of_location(&properties->location, &device))
        return refusal(HOOK_cuMemCreate, "memory at an unknown type of location");
    CUresult result = device_gpu(device, &gpu);
    return result == CUDA_SUCCESS ? create(handle, bytes, properties, flags, gpu) : result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    uint64_t number = physical_begin_release(handle);
    CUresult result = REAL(cuMemRelease)(handle);
    if (number == PHYSICAL_NONE)
        return result;
    if (result == CUDA_SUCCESS)
        physical_end_release(number);
    else
        physical_cancel_release(handle, number);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS)
        physical_retain(*handle, (uint64_t)(uintptr_t)address);
    return result;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  uint64_t flags) {
    uint64_t number = physical_reference(handle);
    CUresult result = REAL(cuMemMap)(pointer, bytes, offset, handle, flags);
    if (number == PHYSICAL_NONE)
        return result;
    if (result == CUDA_SUCCESS)
        physical_map(pointer, bytes, number);
    else
        physical_unreference(number);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    physical_begin_unmap(pointer, bytes);
    CUresult result = REAL(cuMemUnmap)(pointer, bytes);
    physical_end_unmap(pointer, bytes, result == CUDA_SUCCESS);
    return result;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type, uint64_t flags) {
    physical_mark_exported(handle);
    return REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
}

/* The memory is charged to its exporter. A handle that is already ours keeps its piece. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type) {
    CUresult result = REAL(cuMemImportFromShareableHandle)(handle, shareable, type);
    if (result == CUDA_SUCCESS && !physical_import(*handle) && !physical_create(*handle, 0, 0)) {
        (void)REAL(cuMemRelease)(*handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

static void reference_mapped(const CUarrayMapInfo *mapping) {
    uint64_t number = physical_reference(mapping->memHandle);
    if (number != PHYSICAL_NONE)
        physical_map_array(mapping->resource, number);
}

typedef CUresult map_arrays_t(CUarrayMapInfo *mappings, unsigned count, CUstream stream);

static CUresult map_arrays(map_arrays_t *real, CUarrayMapInfo *mappings, unsigned count, CUstream stream) {
    CUresult result = real(mappings, count, stream);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (mappings[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
            reference_mapped(&mappings[i]);
    }
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *mappings, unsigned count, CUstream stream) {
    return map_arrays(REAL(cuMemMapArrayAsync), mappings, count, stream);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mappings, unsigned count, CUstream stream) {
    return map_arrays(REAL(cuMemMapArrayAsync_ptsz), mappings, count, stream);
}
