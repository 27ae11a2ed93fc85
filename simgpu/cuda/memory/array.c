/* Arrays: opaque memory for textures. Only the amount of memory is simulated: rows in multiples of 64 bytes, in
 * groups of eight, which is the smallest block of real GPUs. Sparse arrays and those with deferred mapping take
 * none. */
#include "cuda/memory/array.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/memory/vmm.h"
#include "state/slots.h"

#define ROW_BYTES 64u
#define ROWS 8u
#define WITHOUT_MEMORY (ARRAY_SPARSE | ARRAY_DEFERRED_MAPPING)
#define MAP 1
#define UNMAP 2

typedef struct mapped {
    struct mapped *next;
    CUmemGenericAllocationHandle handle;
    int subresource_type;
    uint64_t subresource[4];
} mapped_t;

struct CUarray_st {
    CUarray next;
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    size_t bytes;
    bool mipmap;
    mapped_t *mapped;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUarray arrays;

static size_t element_bytes(int format) {
    switch (format) {
    case 0x01: /* 8 bits, unsigned or signed */
    case 0x08:
        return 1;
    case 0x02: /* 16 bits, or half precision */
    case 0x09:
    case 0x10:
        return 2;
    case 0x03: /* 32 bits, or single precision */
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 0;
    }
}

static size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}

static size_t at_level(size_t extent, unsigned level) {
    return extent >> level > 0 ? extent >> level : 1;
}

/* Return the bytes of a mipmap level; 0: invalid array. */
static size_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level) {
    bool layered = (descriptor->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)) != 0;
    size_t width = element_bytes(descriptor->Format) * descriptor->NumChannels;
    size_t rows = round_up(at_level(descriptor->Height, level), ROWS);
    size_t bytes;
    if (__builtin_mul_overflow(width, at_level(descriptor->Width, level), &width) || width > SIZE_MAX - ROW_BYTES ||
        __builtin_mul_overflow(round_up(width, ROW_BYTES), rows, &bytes) ||
        __builtin_mul_overflow(bytes, at_level(descriptor->Depth, layered ? 0 : level), &bytes))
        return 0;
    return bytes;
}

static size_t all_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
    size_t bytes = 0;
    for (unsigned level = 0; level < levels; level++) {
        size_t more_bytes = level_bytes(descriptor, level);
        if (more_bytes == 0 || __builtin_add_overflow(bytes, more_bytes, &bytes))
            return 0;
    }
    return bytes;
}

static CUresult create(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, bool mipmap) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (array == NULL || descriptor == NULL || levels == 0 || levels > 32 || descriptor->Width == 0)
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = all_bytes(descriptor, levels);
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    bool takes = (descriptor->Flags & WITHOUT_MEMORY) == 0;
    if (takes && !slots_charge(context->gpu, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *array = malloc(sizeof **array);
    if (*array == NULL) {
        slots_refund(context->gpu, takes ? bytes : 0);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&mutex);
    **array = (struct CUarray_st){
        .next = arrays, .context = context, .descriptor = *descriptor, .bytes = bytes, .mipmap = mipmap};
    arrays = *array;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    return create(array, descriptor, 1, false);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
    if (descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR wide = {descriptor->Width,  descriptor->Height,      0,
                                          descriptor->Format, descriptor->NumChannels, 0};
    return create(array, &wide, 1, false);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor) {
    if (descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR wide = {descriptor->Width,  descriptor->Height,      0,
                                          descriptor->Format, descriptor->NumChannels, 0};
    return create(array, &wide, 1, false);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
    return create(array, descriptor, levels, true);
}

/* With the lock held. Unmaps everything, or one subresource. */
static void unmap(CUarray array, const CUarrayMapInfo *place) {
    for (mapped_t **link = &array->mapped; *link != NULL;) {
        mapped_t *mapped = *link;
        if (place != NULL && (mapped->subresource_type != place->subresourceType ||
                              memcmp(mapped->subresource, place->subresource, sizeof mapped->subresource) != 0)) {
            link = &mapped->next;
            continue;
        }
        *link = mapped->next;
        vmm_release(mapped->handle);
        free(mapped);
    }
}

/* With the lock held, after removal from the list. */
static void end(CUarray array) {
    unmap(array, NULL);
    if ((array->descriptor.Flags & WITHOUT_MEMORY) == 0)
        slots_refund(array->context->gpu, array->bytes);
    free(array);
}

static CUresult destroy(CUarray array, bool mipmap) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    CUarray *link = &arrays;
    while (*link != NULL && *link != array)
        link = &(*link)->next;
    bool found = array != NULL && *link != NULL && array->mipmap == mipmap;
    if (found) {
        *link = array->next;
        end(array);
    }
    pthread_mutex_unlock(&mutex);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuArrayDestroy(CUarray array) {
    return destroy(array, false);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    return destroy(array, true);
}

void array_free_context(CUcontext context) {
    pthread_mutex_lock(&mutex);
    for (CUarray *link = &arrays; *link != NULL;) {
        CUarray array = *link;
        if (array->context != context) {
            link = &array->next;
            continue;
        }
        *link = array->next;
        end(array);
    }
    pthread_mutex_unlock(&mutex);
}

/* Defined only for arrays with deferred mapping, as in CUDA. */
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUarray array, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result == CUDA_SUCCESS &&
        (needs == NULL || array == NULL || (array->descriptor.Flags & ARRAY_DEFERRED_MAPPING) == 0))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *needs = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array->bytes, .alignment = ROW_BYTES * ROWS};
    return result;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUmipmappedArray array,
                                               CUdevice device) {
    return cuArrayGetMemoryRequirements(needs, array, device);
}

static CUresult map(const CUarrayMapInfo *place) {
    if (place->array == NULL || (place->array->descriptor.Flags & WITHOUT_MEMORY) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (place->memOperationType == UNMAP) {
        unmap(place->array, place);
        return CUDA_SUCCESS;
    }
    mapped_t *mapped = malloc(sizeof *mapped);
    if (mapped == NULL || place->memOperationType != MAP || !vmm_retain(place->memHandle)) {
        free(mapped);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *mapped = (mapped_t){
        .next = place->array->mapped, .handle = place->memHandle, .subresource_type = place->subresourceType};
    memcpy(mapped->subresource, place->subresource, sizeof mapped->subresource);
    place->array->mapped = mapped;
    return CUDA_SUCCESS;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *mappings, unsigned count, CUstream stream) {
    CUresult result = driver_ready();
    (void)stream; /* takes effect at once */
    if (result == CUDA_SUCCESS && mappings == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = map(&mappings[i]);
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mappings, unsigned count, CUstream stream) {
    return cuMemMapArrayAsync(mappings, count, stream);
}
