/* Device memory. Each allocation is charged to the GPU to the byte and backed by host address space that costs nothing
 * until it is touched, so that a copy really copies and 80 GiB fit into a small machine. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_driver.h"
#include "mig.h"
#include "shared.h"
#include "slots.h"

#define BUCKETS 4096u
#define PITCH_BYTES 512u
#define PAGE_BITS 12u

typedef struct node {
    struct node *next;
    CUdeviceptr pointer;
    allocation_t allocation;
} node_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static node_t *buckets[BUCKETS];

static node_t **bucket_of(CUdeviceptr pointer) {
    return &buckets[(pointer >> PAGE_BITS) * 0x9e3779b97f4a7c15ull >> 52];
}

bool memory_map(const allocation_t *allocation, int map_flags, CUdeviceptr *pointer_p) {
    node_t *node = malloc(sizeof *node);
    bool shared = allocation->memory >= 0;
    int kind = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | map_flags;
    void *mapping =
        mmap(NULL, allocation->bytes, PROT_READ | PROT_WRITE, kind, allocation->memory, (off_t)allocation->offset);
    if (node == NULL || mapping == MAP_FAILED) {
        free(node);
        if (mapping != MAP_FAILED)
            munmap(mapping, allocation->bytes);
        return false;
    }
    *node = (node_t){.pointer = (CUdeviceptr)(uintptr_t)mapping, .allocation = *allocation};
    pthread_mutex_lock(&mutex);
    node_t **bucket = bucket_of(node->pointer);
    node->next = *bucket;
    *bucket = node;
    pthread_mutex_unlock(&mutex);
    *pointer_p = node->pointer;
    return true;
}

static CUresult allocate(size_t bytes, int map_flags, CUdeviceptr *pointer_p) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!slots_charge(context->gpu, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation_t allocation = {.gpu = context->gpu, .context = context, .bytes = bytes, .memory = -1};
    if (memory_map(&allocation, map_flags, pointer_p))
        return CUDA_SUCCESS;
    slots_refund(context->gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Memory that a node of the list had is unmapped before it is refunded: it is gone before anyone else can have it. */
static void release(node_t *node, const free_point_t *point) {
    const allocation_t *allocation = &node->allocation;
    munmap((void *)(uintptr_t)node->pointer, allocation->bytes);
    if (allocation->pool != NULL)
        pool_take_back(allocation, point);
    else
        slots_refund(allocation->gpu, allocation->bytes);
    if (allocation->pool == NULL && allocation->memory >= 0)
        close(allocation->memory);
    free(node);
}

/* With the lock held. */
static node_t *find(CUdeviceptr pointer) {
    node_t *node = *bucket_of(pointer);
    while (node != NULL && node->pointer != pointer)
        node = node->next;
    return node;
}

bool memory_find(CUdeviceptr pointer, allocation_t *found) {
    pthread_mutex_lock(&mutex);
    const node_t *node = find(pointer);
    if (node != NULL)
        *found = node->allocation;
    pthread_mutex_unlock(&mutex);
    return node != NULL;
}

/* What is in it moves along, page by page, but for pages that nobody has written to. */
static bool make_shared(node_t *node) {
    static const char zeros[1u << PAGE_BITS];
    allocation_t *allocation = &node->allocation;
    char *old = (char *)(uintptr_t)node->pointer;
    int memory = shared_make(allocation->gpu, allocation->bytes);
    for (size_t at = 0; memory >= 0 && at < allocation->bytes; at += sizeof zeros) {
        size_t bytes = allocation->bytes - at < sizeof zeros ? allocation->bytes - at : sizeof zeros;
        if (memcmp(old + at, zeros, bytes) != 0 && pwrite(memory, old + at, bytes, (off_t)at) != (ssize_t)bytes) {
            close(memory);
            memory = -1;
        }
    }
    if (memory < 0 || mmap(old, allocation->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) != old)
        return false;
    allocation->memory = memory;
    return true;
}

bool memory_share(CUdeviceptr pointer, allocation_t *found) {
    pthread_mutex_lock(&mutex);
    node_t *node = find(pointer);
    bool shared = node != NULL && node->allocation.pool == NULL && (node->allocation.memory >= 0 || make_shared(node));
    if (shared)
        *found = node->allocation;
    pthread_mutex_unlock(&mutex);
    return shared;
}

CUresult memory_free(CUdeviceptr pointer, const free_point_t *point) {
    pthread_mutex_lock(&mutex);
    node_t **link = bucket_of(pointer);
    while (*link != NULL && (*link)->pointer != pointer)
        link = &(*link)->next;
    node_t *node = *link;
    if (node != NULL)
        *link = node->next;
    pthread_mutex_unlock(&mutex);
    if (node == NULL)
        return graph_memory_free(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    release(node, point);
    return CUDA_SUCCESS;
}

void memory_free_context(CUcontext context) {
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < BUCKETS; i++) {
        node_t **link = &buckets[i];
        while (*link != NULL) {
            node_t *node = *link;
            if (node->allocation.context != context) {
                link = &node->next;
                continue;
            }
            *link = node->next;
            release(node, NULL);
        }
    }
    pthread_mutex_unlock(&mutex);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    return pointer != NULL ? allocate(bytes, 0, pointer) : CUDA_ERROR_INVALID_VALUE;
}

/* The form of before CUDA 3.2, whose pointers have 32 bits. */
CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes) {
    CUdeviceptr wide = 0;
    CUresult result = pointer != NULL ? allocate(bytes, MAP_32BIT, &wide) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *pointer = (CUdeviceptr_v1)wide;
    return result;
}

static size_t pitch_of(size_t width) {
    return (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    size_t bytes;
    if (pointer == NULL || pitch == NULL || (element != 4 && element != 8 && element != 16) ||
        width > SIZE_MAX - PITCH_BYTES || __builtin_mul_overflow(pitch_of(width), height, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = allocate(bytes, 0, pointer);
    if (result == CUDA_SUCCESS)
        *pitch = pitch_of(width);
    return result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    CUdeviceptr wide = 0;
    if (pointer == NULL || pitch == NULL || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = allocate(pitch_of(width) * height, MAP_32BIT, &wide);
    if (result == CUDA_SUCCESS) {
        *pointer = (CUdeviceptr_v1)wide;
        *pitch = (unsigned)pitch_of(width);
    }
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    if (flags != 1 && flags != 2) /* attach to all, attach to the host */
        return CUDA_ERROR_INVALID_VALUE;
    return cuMemAlloc_v2(pointer, bytes);
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || pointer == 0)
        return result;
    return memory_free(pointer, NULL);
}

CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    return cuMemFree_v2(pointer);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (free_bytes == NULL || total_bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    slots_sweep(context->gpu);
    *total_bytes = mig_memory_bytes(context->gpu);
    *free_bytes = *total_bytes - slots_used_bytes(context->gpu);
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes) {
    size_t wide_free_bytes, wide_total_bytes;
    if (free_bytes == NULL || total_bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuMemGetInfo_v2(&wide_free_bytes, &wide_total_bytes);
    if (result == CUDA_SUCCESS) {
        *free_bytes = wide_free_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)wide_free_bytes;
        *total_bytes = wide_total_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)wide_total_bytes;
    }
    return result;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < BUCKETS && result != CUDA_SUCCESS; i++) {
        for (const node_t *node = buckets[i]; node != NULL; node = node->next) {
            if (pointer - node->pointer >= node->allocation.bytes)
                continue;
            if (base != NULL)
                *base = node->pointer;
            if (bytes != NULL)
                *bytes = node->allocation.bytes;
            result = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
