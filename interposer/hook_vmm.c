/* Physical memory by handles. It lives as long as a handle or a mapping refers to it, whichever ends last.
 *
 * Each piece gets a number of our own, since the driver may use a handle's value again the moment it is free. The lock
 * is held for the tables only, never across a call to the driver: what a call will do is noted before it and undone if
 * it failed, or noted after it, so that the bytes are charged for at least as long as they exist. */
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "fork.h"
#include "refusal.h"
#include "share.h"
#include "table.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static table_t pieces = TABLE_INITIALIZER;   /* number -> bytes, gpu, count of references */
static table_t handles = TABLE_INITIALIZER;  /* handle -> owner: number, count of references by it */
static table_t mappings = TABLE_INITIALIZER; /* address -> bytes, owner: number */
static uint64_t last_number;

void vmm_after_fork(void) {
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    table_forget(&pieces);
    table_forget(&handles);
    table_forget(&mappings);
}

/* With the lock held. The entries exist or have just been taken, so there is room for them. */
static void put(table_t *table, const entry_t *entry) {
    entry_t old;
    (void)table_put(table, entry, &old);
}

static void hold(uint64_t number) {
    entry_t piece;
    if (table_get(&pieces, number, &piece)) {
        piece.count++;
        put(&pieces, &piece);
    }
}

static void let_go(uint64_t number) {
    entry_t piece;
    if (!table_take(&pieces, number, &piece))
        return;
    if (--piece.count > 0)
        put(&pieces, &piece);
    else
        share_refund(piece.gpu, piece.bytes);
}

static void hold_handle(CUmemGenericAllocationHandle handle, uint64_t number) {
    entry_t entry;
    if (!table_get(&handles, handle, &entry) || entry.owner != number)
        entry = (entry_t){.key = handle, .owner = number};
    entry.count++;
    put(&handles, &entry);
    hold(number);
}

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
    entry_t old;
    pthread_mutex_lock(&mutex);
    entry_t piece = {.key = ++last_number, .bytes = bytes, .gpu = gpu, .count = 1};
    entry_t entry = {.key = *handle, .owner = piece.key, .count = 1};
    bool noted = table_put(&pieces, &piece, &old) && table_put(&handles, &entry, &old);
    pthread_mutex_unlock(&mutex);
    if (noted)
        return CUDA_SUCCESS;
    if (REAL(cuMemRelease)(*handle) == CUDA_SUCCESS)
        share_refund(gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Works without a context, on whatever device the properties name. */
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     uint64_t flags) {
    uint32_t gpu;
    if (!share_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (properties == NULL || (properties->location.type >= CU_MEM_LOCATION_TYPE_HOST &&
                               properties->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT))
        return REAL(cuMemCreate)(handle, bytes, properties, flags); /* an error, or memory of the host */
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return refusal(HOOK_cuMemCreate, "memory at a location of an unknown kind");
    CUresult result = device_gpu(properties->location.id, &gpu);
    return result == CUDA_SUCCESS ? create(handle, bytes, properties, flags, gpu) : result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    entry_t entry;
    pthread_mutex_lock(&mutex);
    bool known = table_take(&handles, handle, &entry);
    if (known && --entry.count > 0)
        put(&handles, &entry);
    pthread_mutex_unlock(&mutex);

    CUresult result = REAL(cuMemRelease)(handle);

    pthread_mutex_lock(&mutex);
    if (known && result == CUDA_SUCCESS) {
        let_go(entry.owner);
    } else if (known) {
        hold_handle(handle, entry.owner);
        let_go(entry.owner);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    entry_t mapping;
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    if (table_containing(&mappings, (uint64_t)(uintptr_t)address, &mapping))
        hold_handle(*handle, mapping.owner);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  uint64_t flags) {
    entry_t entry = {0};
    entry_t old;
    pthread_mutex_lock(&mutex);
    bool known = table_get(&handles, handle, &entry);
    if (known)
        hold(entry.owner);
    pthread_mutex_unlock(&mutex);

    CUresult result = REAL(cuMemMap)(pointer, bytes, offset, handle, flags);

    pthread_mutex_lock(&mutex);
    entry_t mapping = {.key = pointer, .bytes = bytes, .owner = entry.owner};
    /* A mapping that cannot be noted holds its memory for good: charged for too long, never for too short. */
    if (known && result == CUDA_SUCCESS && table_put(&mappings, &mapping, &old) && old.key != 0)
        let_go(old.owner);
    if (known && result != CUDA_SUCCESS)
        let_go(entry.owner);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* One call may end several mappings that follow each other, and only whole ones. */
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    CUresult result = REAL(cuMemUnmap)(pointer, bytes);
    entry_t mapping;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    CUdeviceptr end = pointer + bytes;
    while (pointer < end && table_take(&mappings, pointer, &mapping) && mapping.bytes > 0) {
        let_go(mapping.owner);
        pointer += mapping.bytes;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
