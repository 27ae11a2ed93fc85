/* Pointer attributes: the kind of memory at an address, its allocation, and how it can be used. */
#include "cuda/memory/pointer.h"

#include <string.h>

#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/memory/allocation.h"
#include "cuda/memory/graph_memory.h"
#include "cuda/memory/host.h"
#include "cuda/memory/ipc.h"
#include "cuda/memory/vmm.h"

bool pointer_find(CUdeviceptr address, memory_place_t *place) {
    allocation_t found;
    CUdeviceptr start;
    if (!memory_find_containing(address, &start, &found))
        return vmm_find(address, place) || ipc_find(address, place) || graph_memory_find(address, place) ||
               host_find(address, place);
    *place = (memory_place_t){.start = start,
                              .bytes = found.bytes,
                              .gpu = found.gpu,
                              .context = found.context,
                              .pool = found.pool,
                              .managed = found.managed,
                              .legacy_ipc = found.pool == NULL && !found.managed,
                              .id = found.id};
    return true;
}

bool pointer_range(CUdeviceptr start, size_t bytes) {
    memory_place_t place;
    while (bytes > 0 && pointer_find(start, &place)) {
        size_t left = place.bytes - (start - place.start);
        if (bytes <= left)
            return true;
        start += left;
        bytes -= left;
    }
    return bytes == 0;
}

/* CUDA's pointer attributes, with shorter names. */
enum {
    CONTEXT = 1,
    MEMORY_TYPE,
    DEVICE_POINTER,
    HOST_POINTER,
    P2P_TOKENS,
    SYNC_MEMOPS,
    BUFFER_ID,
    IS_MANAGED,
    DEVICE_ORDINAL,
    IS_LEGACY_IPC,
    RANGE_START,
    RANGE_BYTES,
    MAPPED,
    HANDLE_TYPES,
    IS_RDMA,
    ACCESS_FLAGS,
    POOL,
    MAPPING_BYTES,
    MAPPING_START,
    BLOCK_ID,
    IS_DECOMPRESSED,
    LAST_ATTRIBUTE = IS_DECOMPRESSED
};

#define ON_HOST 1u
#define ON_DEVICE 2u

/* The size of an attribute's value. */
static size_t size_of(int attribute) {
    switch (attribute) {
    case CONTEXT:
    case DEVICE_POINTER:
    case HOST_POINTER:
    case BUFFER_ID:
    case RANGE_START:
    case RANGE_BYTES:
    case HANDLE_TYPES:
    case POOL:
    case MAPPING_BYTES:
    case MAPPING_START:
    case BLOCK_ID:
        return sizeof(uint64_t);
    case MEMORY_TYPE:
    case DEVICE_ORDINAL:
    case ACCESS_FLAGS:
        return sizeof(uint32_t);
    default:
        return sizeof(bool); /* yes or no */
    }
}

static CUresult answer(uint64_t *value, int attribute, CUdeviceptr pointer, const memory_place_t *place) {
    CUcontext context = place->context;
    if (context == NULL && !place->on_host)
        (void)context_current(&context);
    switch (attribute) {
    case CONTEXT:
        *value = (uint64_t)(uintptr_t)context;
        return CUDA_SUCCESS;
    case MEMORY_TYPE:
        *value = place->on_host ? ON_HOST : ON_DEVICE;
        return CUDA_SUCCESS;
    case DEVICE_POINTER:
        *value = pointer;
        return CUDA_SUCCESS;
    case HOST_POINTER:
        *value = pointer;
        return place->on_host || place->managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case BUFFER_ID:
    case BLOCK_ID:
        *value = place->id;
        return CUDA_SUCCESS;
    case IS_MANAGED:
        *value = place->managed;
        return CUDA_SUCCESS;
    case DEVICE_ORDINAL: {
        const gpu_t *gpu = place->gpu != NULL ? place->gpu : context != NULL ? context->gpu : NULL;
        *value = (uint32_t)driver_device(gpu);
        return CUDA_SUCCESS;
    }
    case IS_LEGACY_IPC:
        *value = place->legacy_ipc;
        return CUDA_SUCCESS;
    case RANGE_START:
    case MAPPING_START:
        *value = place->start;
        return CUDA_SUCCESS;
    case RANGE_BYTES:
    case MAPPING_BYTES:
        *value = place->bytes;
        return CUDA_SUCCESS;
    case MAPPED:
        *value = true;
        return CUDA_SUCCESS;
    case ACCESS_FLAGS:
        *value = 3; /* read and write */
        return CUDA_SUCCESS;
    case POOL:
        *value = (uint64_t)(uintptr_t)place->pool;
        return CUDA_SUCCESS;
    case SYNC_MEMOPS:
    case HANDLE_TYPES:
    case IS_RDMA:
    case IS_DECOMPRESSED:
        *value = 0;
        return CUDA_SUCCESS;
    case P2P_TOKENS:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer) {
    memory_place_t place;
    uint64_t found = 0;
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS)
        result = value != NULL && pointer_find(pointer, &place) ? answer(&found, attribute, pointer, &place)
                                                                : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        memcpy(value, &found, size_of(attribute)); /* the low bytes come first on all processors that CUDA supports */
    return result;
}

/* For an address that the driver does not know, all attributes are zero, without an error. */
CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr pointer) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (count == 0 || attributes == NULL || values == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (attributes[i] < CONTEXT || attributes[i] > LAST_ATTRIBUTE || values[i] == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        if (cuPointerGetAttribute(values[i], attributes[i], pointer) == CUDA_SUCCESS)
            continue;
        const uint64_t nothing = attributes[i] == DEVICE_ORDINAL ? UINT64_MAX - 1 : 0; /* -2: on no device */
        memcpy(values[i], &nothing, size_of(attributes[i]));
    }
    return CUDA_SUCCESS;
}

/* The only settable attribute makes copies synchronous, which they always are. */
CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer) {
    memory_place_t place;
    bool fine = value != NULL && attribute == SYNC_MEMOPS && pointer_find(pointer, &place);
    return fine ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    memory_place_t place;
    if (!pointer_find(pointer, &place) || place.on_host)
        return CUDA_ERROR_INVALID_VALUE;
    if (base != NULL)
        *base = place.start;
    if (bytes != NULL)
        *bytes = place.bytes;
    return CUDA_SUCCESS;
}
