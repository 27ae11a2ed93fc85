/* Arrays. Sparse arrays and arrays with deferred mapping take no memory by themselves.
 *
 * The driver reports an array's size only for deferred mapping. So the library creates a deferred twin of the wanted
 * array, which takes no memory, and queries that. If the driver cannot tell, the size is estimated. */
#include "cuda/device.h"
#include "driver/driver.h"
#include "memory/array_size.h"
#include "memory/charge.h"
#include "memory/physical.h"
#include "session/join.h"
#include "share/share.h"

#define WITHOUT_MEMORY (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

static bool twin_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, CUdevice device, uint64_t *bytes_p) {
    CUDA_ARRAY3D_DESCRIPTOR like = *descriptor;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
    CUresult result;
    like.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (levels == 0) {
        CUarray twin;
        if (REAL(cuArray3DCreate_v2)(&twin, &like) != CUDA_SUCCESS)
            return false;
        result = REAL(cuArrayGetMemoryRequirements)(&needs, twin, device);
        (void)REAL(cuArrayDestroy)(twin);
    } else {
        CUmipmappedArray twin;
        if (REAL(cuMipmappedArrayCreate)(&twin, &like, levels) != CUDA_SUCCESS)
            return false;
        result = REAL(cuMipmappedArrayGetMemoryRequirements)(&needs, twin, device);
        (void)REAL(cuMipmappedArrayDestroy)(twin);
    }
    *bytes_p = needs.size;
    return result == CUDA_SUCCESS && needs.size > 0;
}

/* Both sizes are upper bounds. */
static uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
    CUdevice device;
    uint64_t bytes;
    uint64_t max_bytes = array_max_bytes(descriptor, levels > 0 ? levels : 1);
    bool known = REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS && twin_bytes(descriptor, levels, device, &bytes);
    return known && bytes < max_bytes ? bytes : max_bytes;
}

/* Called before the real call. `levels` is 0 without a mipmap. */
static CUresult begin(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, place_t *place, uint64_t *bytes_p) {
    *bytes_p = 0;
    if (!session_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    CUresult result = device_place(place);
    place->deferred = true; /* it may take less than estimated */
    if (result != CUDA_SUCCESS || descriptor->Flags & WITHOUT_MEMORY)
        return result;
    *bytes_p = bytes_of(descriptor, levels);
    return charge_begin(place, *bytes_p);
}

typedef CUresult destroy_t(void *array);

/* Called after the real call. The key is the array's address: an object in host memory, so no device pointer equals
 * it. */
static CUresult end(const place_t *place, CUresult result, uint64_t bytes, void *array, destroy_t *destroy) {
    if (bytes == 0)
        return result;
    if (result == CUDA_SUCCESS && charge_record(place, (uint64_t)(uintptr_t)array, bytes))
        return result;
    if (result != CUDA_SUCCESS || destroy(array) == CUDA_SUCCESS)
        share_refund(place->gpu, bytes);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult destroy_array(void *array) {
    return REAL(cuArrayDestroy)(array);
}

static CUresult destroy_mipmap(void *array) {
    return REAL(cuMipmappedArrayDestroy)(array);
}

#define CREATE(symbol, descriptor_t, depth, flags)                                                                     \
    CUresult symbol(CUarray *array, const descriptor_t *descriptor) {                                                  \
        place_t place;                                                                                                 \
        uint64_t bytes;                                                                                                \
        if (array == NULL || descriptor == NULL)                                                                       \
            return REAL(symbol)(array, descriptor);                                                                    \
        const CUDA_ARRAY3D_DESCRIPTOR wide = {descriptor->Width,  descriptor->Height,      depth,                      \
                                              descriptor->Format, descriptor->NumChannels, flags};                     \
        CUresult result = begin(&wide, 0, &place, &bytes);                                                             \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = REAL(symbol)(array, descriptor);                                                                      \
        return end(&place, result, bytes, *array, destroy_array);                                                      \
    }
CREATE(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, descriptor->Depth, descriptor->Flags)
CREATE(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, descriptor->Depth, descriptor->Flags)
CREATE(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, 0, 0)
CREATE(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, 0, 0)

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
    place_t place;
    uint64_t bytes;
    if (array == NULL || descriptor == NULL)
        return REAL(cuMipmappedArrayCreate)(array, descriptor, levels);
    CUresult result = begin(descriptor, levels > 0 ? levels : 1, &place, &bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMipmappedArrayCreate)(array, descriptor, levels);
    return end(&place, result, bytes, *array, destroy_mipmap);
}

static CUresult destroyed(const charge_t *charge, CUresult result, void *array) {
    if (result == CUDA_SUCCESS)
        physical_drop_array((uint64_t)(uintptr_t)array);
    return charge_end_free(charge, result);
}

CUresult cuArrayDestroy(CUarray array) {
    charge_t charge = charge_begin_free((CUdeviceptr)(uintptr_t)array);
    return destroyed(&charge, REAL(cuArrayDestroy)(array), array);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    charge_t charge = charge_begin_free((CUdeviceptr)(uintptr_t)array);
    return destroyed(&charge, REAL(cuMipmappedArrayDestroy)(array), array);
}
