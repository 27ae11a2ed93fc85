/* Host memory that devices can access: allocated here, or registered. Simulated devices can access all host memory,
 * so it is only recorded for queries. */
#include "cuda/memory/host.h"

#include <search.h>
#include <stdlib.h>

#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "time/timeline.h"

#define HOST_PAGE_BYTES 4096u

typedef struct {
    CUdeviceptr start;
    size_t bytes;
    CUcontext context;
    unsigned flags;
    bool allocated; /* here; otherwise registered */
} block_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *blocks; /* a tree, by address */

/* Overlapping blocks compare as equal. */
static int compare(const void *one, const void *other) {
    const block_t *a = one, *b = other;
    if (a->start + a->bytes <= b->start)
        return -1;
    return a->start >= b->start + b->bytes;
}

/* With the lock held. */
static block_t *find(CUdeviceptr address) {
    const block_t key = {.start = address, .bytes = 1};
    block_t **found = tfind(&key, &blocks, compare);
    return found != NULL ? *found : NULL;
}

/* False: the range overlaps another one, or there is no memory. */
static bool add(const block_t *block) {
    block_t *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return false;
    *copy = *block;
    pthread_mutex_lock(&mutex);
    block_t **found = tsearch(copy, &blocks, compare);
    bool added = found != NULL && *found == copy;
    pthread_mutex_unlock(&mutex);
    if (!added)
        free(copy);
    return added;
}

static bool remove_block(CUdeviceptr start, bool allocated) {
    pthread_mutex_lock(&mutex);
    block_t *found = find(start);
    bool is_one = found != NULL && found->start == start && found->allocated == allocated;
    if (is_one)
        (void)tdelete(found, &blocks, compare);
    pthread_mutex_unlock(&mutex);
    if (is_one)
        free(found);
    return is_one;
}

bool host_find(CUdeviceptr address, memory_place_t *place) {
    pthread_mutex_lock(&mutex);
    const block_t *found = find(address);
    if (found != NULL)
        *place =
            (memory_place_t){.start = found->start, .bytes = found->bytes, .context = found->context, .on_host = true};
    pthread_mutex_unlock(&mutex);
    return found != NULL;
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0 || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = aligned_alloc(HOST_PAGE_BYTES, (bytes + HOST_PAGE_BYTES - 1) / HOST_PAGE_BYTES * HOST_PAGE_BYTES);
    if (*pointer == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (add(&(block_t){(CUdeviceptr)(uintptr_t)*pointer, bytes, context, flags, true}))
        return CUDA_SUCCESS;
    free(*pointer);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemAllocHost(void **pointer, unsigned bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemFreeHost(void *pointer) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    timeline_wait(context->gpu, context->last_mark);
    if (!remove_block((CUdeviceptr)(uintptr_t)pointer, true))
        return CUDA_ERROR_INVALID_VALUE;
    free(pointer);
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0 || flags > 15)
        return CUDA_ERROR_INVALID_VALUE;
    return add(&(block_t){(CUdeviceptr)(uintptr_t)pointer, bytes, context, flags, false})
               ? CUDA_SUCCESS
               : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned flags) {
    return cuMemHostRegister_v2(pointer, bytes, flags);
}

CUresult cuMemHostUnregister(void *pointer) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    return remove_block((CUdeviceptr)(uintptr_t)pointer, false) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned flags) {
    memory_place_t place;
    if (pointer == NULL || flags != 0 || !host_find((CUdeviceptr)(uintptr_t)host, &place))
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = (CUdeviceptr)(uintptr_t)host;
    return driver_ready();
}

CUresult cuMemHostGetFlags(unsigned *flags, void *host) {
    pthread_mutex_lock(&mutex);
    const block_t *found = find((CUdeviceptr)(uintptr_t)host);
    bool known = flags != NULL && found != NULL && found->allocated;
    if (known)
        *flags = found->flags;
    pthread_mutex_unlock(&mutex);
    return known ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}
