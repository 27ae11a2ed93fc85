/* Virtual memory management: physical memory behind handles, mapped into reserved addresses.
 *
 * A handle lives as long as it has references: by its creator, by retained handles and by mappings. Its memory is a
 * memfd, so two mappings of a handle show the same memory. */
#define _GNU_SOURCE
#include "cuda/memory/vmm.h"

#include <sys/mman.h>
#include <unistd.h>

#include "cuda/device/device.h"
#include "state/shared.h"
#include "state/slots.h"

#define GRANULARITY_BYTES (2ull << 20)
#define MAX_HANDLES 16384u
#define MAX_MAPPINGS 16384u

typedef struct {
    unsigned references; /* 0: free */
    gpu_t *gpu;
    size_t bytes;
    int memory;
    int types;     /* handle types that it can be exported as */
    bool imported; /* its memory counts for another process */
    bool exported; /* other processes may have it */
} handle_t;

typedef struct {
    CUdeviceptr pointer;
    size_t bytes; /* 0: free */
    unsigned handle;
} mapping_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static handle_t handles[MAX_HANDLES];
static mapping_t mappings[MAX_MAPPINGS];
static unsigned mappings_high; /* one past the highest entry ever used */

static handle_t *find_handle(CUmemGenericAllocationHandle handle) {
    return handle >= 1 && handle <= MAX_HANDLES && handles[handle - 1].references > 0 ? &handles[handle - 1] : NULL;
}

static mapping_t *find_mapping(CUdeviceptr pointer) {
    for (unsigned i = 0; i < mappings_high; i++) {
        if (mappings[i].bytes > 0 && pointer - mappings[i].pointer < mappings[i].bytes)
            return &mappings[i];
    }
    return NULL;
}

bool vmm_find(CUdeviceptr address, memory_place_t *place) {
    pthread_mutex_lock(&mutex);
    const mapping_t *mapping = find_mapping(address);
    if (mapping != NULL)
        *place =
            (memory_place_t){.start = mapping->pointer, .bytes = mapping->bytes, .gpu = handles[mapping->handle].gpu};
    pthread_mutex_unlock(&mutex);
    return mapping != NULL;
}

static void drop_reference(handle_t *handle) {
    if (--handle->references > 0)
        return;
    uint64_t number = shared_inode(handle->memory);
    close(handle->memory);
    if (handle->exported)
        slots_abandon(handle->gpu, handle->bytes, number);
    else if (!handle->imported)
        slots_refund(handle->gpu, handle->bytes);
}

bool vmm_retain(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&mutex);
    handle_t *found = find_handle(handle);
    if (found != NULL)
        found->references++;
    pthread_mutex_unlock(&mutex);
    return found != NULL;
}

void vmm_release(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&mutex);
    drop_reference(&handles[handle - 1]);
    pthread_mutex_unlock(&mutex);
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties, int option) {
    (void)properties;
    (void)option; /* the minimum and the recommended granularity are the same */
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS && bytes == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *bytes = GRANULARITY_BYTES;
    return result;
}

/* With the lock held. */
static CUresult add_handle(CUmemGenericAllocationHandle *handle, const handle_t *made) {
    for (unsigned i = 0; i < MAX_HANDLES; i++) {
        if (handles[i].references > 0)
            continue;
        handles[i] = *made;
        *handle = i + 1;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* With the lock held. */
static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, gpu_t *gpu, int types) {
    handle_t made = {.references = 1, .gpu = gpu, .bytes = bytes, .memory = shared_make(gpu, bytes), .types = types};
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (made.memory >= 0 && slots_charge(gpu, bytes)) {
        result = add_handle(handle, &made);
        if (result != CUDA_SUCCESS)
            slots_refund(gpu, bytes);
    }
    if (result != CUDA_SUCCESS && made.memory >= 0)
        close(made.memory);
    return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     uint64_t flags) {
    if (handle == NULL || properties == NULL || properties->location.type != CU_MEM_LOCATION_DEVICE || flags != 0 ||
        bytes == 0 || bytes % GRANULARITY_BYTES != 0)
        return CUDA_ERROR_INVALID_VALUE;
    gpu_t *gpu;
    CUresult result = driver_gpu(properties->location.id, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    result = create(handle, bytes, gpu, properties->requestedHandleTypes);
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type, uint64_t flags) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    handle_t *found = find_handle(handle);
    if (shareable != NULL && found != NULL && flags == 0 && type == CU_MEM_HANDLE_FILE_DESCRIPTOR &&
        (found->types & type) != 0) {
        found->exported = !found->imported && shared_lock(found->memory);
        int descriptor = shared_copy(found->memory);
        *(int *)shareable = descriptor;
        result = descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* The memory counts for the process that exported it. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type) {
    int descriptor = (int)(intptr_t)shareable;
    gpu_t *gpu = handle != NULL && type == CU_MEM_HANDLE_FILE_DESCRIPTOR ? driver_gpu_of(descriptor) : NULL;
    if (gpu == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    handle_t made = {.references = 1,
                     .gpu = gpu,
                     .bytes = (size_t)lseek(descriptor, 0, SEEK_END),
                     .memory = shared_copy(descriptor),
                     .types = type,
                     .imported = true};
    if (made.memory < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_lock(&mutex);
    CUresult result = add_handle(handle, &made);
    pthread_mutex_unlock(&mutex);
    if (result != CUDA_SUCCESS)
        close(made.memory);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&mutex);
    handle_t *found = find_handle(handle);
    if (found != NULL)
        drop_reference(found);
    pthread_mutex_unlock(&mutex);
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    pthread_mutex_lock(&mutex);
    const mapping_t *mapping = find_mapping((CUdeviceptr)(uintptr_t)address);
    if (mapping != NULL && handle != NULL) {
        handles[mapping->handle].references++;
        *handle = mapping->handle + 1;
    }
    pthread_mutex_unlock(&mutex);
    return mapping != NULL && handle != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Reserve more than needed and trim, to align the start to the granularity. */
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wanted, uint64_t flags) {
    (void)wanted; /* a hint */
    if (pointer == NULL || bytes == 0 || bytes % GRANULARITY_BYTES != 0 || alignment > GRANULARITY_BYTES || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    char *start = mmap(NULL, bytes + GRANULARITY_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t skip = (GRANULARITY_BYTES - (uintptr_t)start % GRANULARITY_BYTES) % GRANULARITY_BYTES;
    if (skip > 0)
        munmap(start, skip);
    if (skip < GRANULARITY_BYTES)
        munmap(start + skip + bytes, GRANULARITY_BYTES - skip);
    *pointer = (CUdeviceptr)(uintptr_t)(start + skip);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    return munmap((void *)(uintptr_t)pointer, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult map(CUdeviceptr pointer, size_t bytes, CUmemGenericAllocationHandle handle) {
    handle_t *found = find_handle(handle);
    if (found == NULL || bytes != found->bytes || find_mapping(pointer) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < MAX_MAPPINGS; i++) {
        if (mappings[i].bytes > 0)
            continue;
        if (mmap((void *)(uintptr_t)pointer, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->memory, 0) == MAP_FAILED)
            return CUDA_ERROR_INVALID_VALUE;
        found->references++;
        mappings_high = i >= mappings_high ? i + 1 : mappings_high;
        mappings[i] = (mapping_t){.pointer = pointer, .bytes = bytes, .handle = (unsigned)handle - 1};
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  uint64_t flags) {
    if (offset != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    CUresult result = map(pointer, bytes, handle);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* As in CUDA, the range may cover several mappings, but only whole ones. */
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    while (bytes > 0 && result == CUDA_SUCCESS) {
        mapping_t *mapping = find_mapping(pointer);
        if (mapping == NULL || mapping->pointer != pointer || mapping->bytes > bytes) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        (void)mmap((void *)(uintptr_t)pointer, mapping->bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        drop_reference(&handles[mapping->handle]);
        pointer += mapping->bytes;
        bytes -= mapping->bytes;
        mapping->bytes = 0;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&mutex);
    const handle_t *found = find_handle(handle);
    if (found != NULL && properties != NULL)
        *properties = (CUmemAllocationProp){.type = 1,
                                            .requestedHandleTypes = found->types,
                                            .location = {CU_MEM_LOCATION_DEVICE, driver_device(found->gpu)}};
    pthread_mutex_unlock(&mutex);
    return found != NULL && properties != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    if (access == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    int protection = access->flags == 3 ? PROT_READ | PROT_WRITE : access->flags == 1 ? PROT_READ : PROT_NONE;
    return mprotect((void *)(uintptr_t)pointer, bytes, protection) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
