/* Memory of other processes: pools by file descriptor, plain allocations by legacy IPC handle. It counts for the
 * process that created it, not for this one. */
#define _GNU_SOURCE
#include "cuda/memory/ipc.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/memory/pool.h"
#include "state/shared.h"

#define MAX_OPENED 256u

/* An exported allocation of a pool, for processes that have imported the pool. */
typedef struct {
    uint64_t offset, bytes;
} exported_t;
_Static_assert(sizeof(exported_t) <= sizeof(CUmemPoolPtrExportData), "it fits into CUDA's structure");

/* A plain allocation: the process and the descriptor in it. */
typedef struct {
    uint64_t pid, bytes;
    int64_t memory; /* as wide as the others, without padding: handles are compared byte by byte */
} legacy_t;
_Static_assert(sizeof(legacy_t) <= sizeof(CUipcMemHandle), "it fits into CUDA's structure");

typedef struct {
    legacy_t legacy;
    CUdeviceptr pointer;
    unsigned references; /* 0: free */
    gpu_t *gpu;
} opened_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static opened_t opened[MAX_OPENED];

CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, int type, uint64_t flags) {
    if (shareable == NULL || pool == NULL || pool->destroyed || pool->imported || pool->memory < 0 || flags != 0 ||
        type != CU_MEM_HANDLE_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)shareable = shared_copy(pool->memory);
    return *(int *)shareable >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, int type, uint64_t flags) {
    int memory = (int)(intptr_t)shareable;
    gpu_t *gpu = pool != NULL && type == CU_MEM_HANDLE_FILE_DESCRIPTOR && flags == 0 ? driver_gpu_of(memory) : NULL;
    if (gpu == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = pool_make(gpu, false);
    if (*pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*pool)->imported = true;
    (*pool)->memory = shared_copy(memory);
    return (*pool)->memory >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer) {
    allocation_t found;
    if (data == NULL || !memory_find(pointer, &found) || found.pool == NULL || found.memory < 0 || found.pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    const exported_t exported = {found.offset, found.bytes};
    memset(data, 0, sizeof *data);
    memcpy(data, &exported, sizeof exported);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    exported_t exported;
    if (pointer == NULL || pool == NULL || data == NULL || !pool->imported || pool->destroyed)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&exported, data, sizeof exported);
    off_t end = lseek(pool->memory, 0, SEEK_END);
    if (exported.bytes == 0 || end < 0 || exported.offset + exported.bytes > (uint64_t)end)
        return CUDA_ERROR_INVALID_VALUE;
    const allocation_t allocation = {
        .gpu = pool->gpu, .pool = pool, .bytes = exported.bytes, .memory = pool->memory, .offset = exported.offset};
    return memory_map(&allocation, 0, pointer) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    allocation_t found;
    if (handle == NULL || !memory_share(pointer, &found))
        return CUDA_ERROR_INVALID_VALUE;
    const legacy_t legacy = {.pid = (uint64_t)getpid(), .bytes = found.bytes, .memory = found.memory};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &legacy, sizeof legacy);
    return CUDA_SUCCESS;
}

static CUdeviceptr map(const legacy_t *legacy, gpu_t **gpu) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)legacy->pid, (int)legacy->memory);
    int memory = open(path, O_RDWR | O_CLOEXEC);
    if (memory < 0)
        return 0;
    *gpu = driver_gpu_of(memory);
    bool ours = *gpu != NULL && lseek(memory, 0, SEEK_END) >= (off_t)legacy->bytes;
    void *mapping = ours ? mmap(NULL, legacy->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0) : MAP_FAILED;
    close(memory);
    return mapping != MAP_FAILED ? (CUdeviceptr)(uintptr_t)mapping : 0;
}

/* With the lock held. A handle that is opened twice has one address until it is closed twice. */
static CUresult open_handle(CUdeviceptr *pointer, const legacy_t *legacy) {
    opened_t *place = NULL;
    gpu_t *gpu = NULL;
    for (unsigned i = 0; i < MAX_OPENED; i++) {
        if (opened[i].references > 0 && memcmp(&opened[i].legacy, legacy, sizeof *legacy) == 0) {
            opened[i].references++;
            *pointer = opened[i].pointer;
            return CUDA_SUCCESS;
        }
        if (place == NULL && opened[i].references == 0)
            place = &opened[i];
    }
    *pointer = place != NULL ? map(legacy, &gpu) : 0;
    if (*pointer == 0)
        return CUDA_ERROR_INVALID_HANDLE;
    *place = (opened_t){*legacy, *pointer, 1, gpu};
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags) {
    CUcontext context;
    legacy_t legacy;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    memcpy(&legacy, &handle, sizeof legacy);
    if (pointer == NULL || flags != 1 ||
        legacy.pid == (uint64_t)getpid()) /* CUDA does not open handles of the same process */
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    result = open_handle(pointer, &legacy);
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags) {
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

bool ipc_find(CUdeviceptr address, memory_place_t *place) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < MAX_OPENED && !found; i++) {
        found = opened[i].references > 0 && address - opened[i].pointer < opened[i].legacy.bytes;
        if (found)
            *place =
                (memory_place_t){.start = opened[i].pointer, .bytes = opened[i].legacy.bytes, .gpu = opened[i].gpu};
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < MAX_OPENED && result != CUDA_SUCCESS; i++) {
        if (opened[i].references == 0 || opened[i].pointer != pointer)
            continue;
        result = CUDA_SUCCESS;
        if (--opened[i].references == 0)
            munmap((void *)(uintptr_t)pointer, opened[i].legacy.bytes);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
