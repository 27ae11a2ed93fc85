/* Device memory. Each allocation is charged to the GPU to the byte and backed by host address space that costs nothing
 * until it is touched, so that a copy really copies and 80 GiB fit into a small machine. */
#define _GNU_SOURCE
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_block.h"
#include "cuda_driver.h"
#include "limits.h"
#include "mig.h"
#include "shared.h"
#include "slots.h"

#define PITCH_BYTES 512u
#define PAGE_BITS 12u

typedef struct node {
    struct node *next; /* among those that go with a context */
    CUdeviceptr pointer;
    allocation_t allocation;
} node_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *nodes; /* a tree, by address */
static uint64_t last_id;

/* Ranges that overlap are the same to the tree: what it has never does. */
static int compare(const void *one, const void *other) {
    const node_t *a = one, *b = other;
    if (a->pointer + a->allocation.bytes <= b->pointer)
        return -1;
    return a->pointer >= b->pointer + b->allocation.bytes;
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
    node->allocation.id = ++last_id;
    void *added = tsearch(node, &nodes, compare);
    pthread_mutex_unlock(&mutex);
    if (added == NULL) {
        munmap(mapping, allocation->bytes);
        free(node);
        return false;
    }
    *pointer_p = (CUdeviceptr)(uintptr_t)mapping;
    return true;
}

static CUresult allocate(size_t bytes, int map_flags, bool managed, CUdeviceptr *pointer_p) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    block_t *block;
    if (!block_charge(context->gpu, bytes, &block))
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation_t allocation = {
        .gpu = context->gpu, .context = context, .bytes = bytes, .memory = -1, .managed = managed, .block = block};
    if (memory_map(&allocation, map_flags, pointer_p))
        return CUDA_SUCCESS;
    block_refund(context->gpu, bytes, block);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Memory that a node of the list had is unmapped before it is refunded: it is gone before anyone else can have it. */
static void release(node_t *node, const free_point_t *point) {
    const allocation_t *allocation = &node->allocation;
    munmap((void *)(uintptr_t)node->pointer, allocation->bytes);
    if (allocation->pool != NULL)
        pool_take_back(allocation, point);
    else
        block_refund(allocation->gpu, allocation->bytes, allocation->block);
    if (allocation->pool == NULL && allocation->memory >= 0)
        close(allocation->memory);
    free(node);
}

/* With the lock held: the one that the address is in. */
static node_t *find_around(CUdeviceptr address) {
    const node_t key = {.pointer = address, .allocation = {.bytes = 1}};
    node_t **found = tfind(&key, &nodes, compare);
    return found != NULL ? *found : NULL;
}

/* With the lock held. */
static node_t *find(CUdeviceptr pointer) {
    node_t *node = find_around(pointer);
    return node != NULL && node->pointer == pointer ? node : NULL;
}

bool memory_around(CUdeviceptr address, CUdeviceptr *start, allocation_t *found) {
    pthread_mutex_lock(&mutex);
    const node_t *node = find_around(address);
    if (node != NULL) {
        *start = node->pointer;
        *found = node->allocation;
    }
    pthread_mutex_unlock(&mutex);
    return node != NULL;
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
    node_t *node = find(pointer);
    if (node != NULL)
        (void)tdelete(node, &nodes, compare);
    pthread_mutex_unlock(&mutex);
    if (node == NULL)
        return graph_memory_free(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    release(node, point);
    return CUDA_SUCCESS;
}

/* With the lock held: which context goes, and what it has. */
static CUcontext going;
static node_t *gone;

static void note_gone(const void *entry, VISIT visit, int depth) {
    node_t *node = *(node_t *const *)entry;
    (void)depth;
    if ((visit != postorder && visit != leaf) || node->allocation.context != going)
        return;
    node->next = gone;
    gone = node;
}

void memory_free_context(CUcontext context) {
    pthread_mutex_lock(&mutex);
    going = context;
    twalk(nodes, note_gone);
    while (gone != NULL) {
        node_t *node = gone;
        gone = node->next;
        (void)tdelete(node, &nodes, compare);
        release(node, NULL);
    }
    pthread_mutex_unlock(&mutex);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    return pointer != NULL ? allocate(bytes, 0, false, pointer) : CUDA_ERROR_INVALID_VALUE;
}

/* The form of before CUDA 3.2, whose pointers have 32 bits. */
CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes) {
    CUdeviceptr wide = 0;
    CUresult result = pointer != NULL ? allocate(bytes, MAP_32BIT, false, &wide) : CUDA_ERROR_INVALID_VALUE;
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
    CUresult result = allocate(bytes, 0, false, pointer);
    if (result == CUDA_SUCCESS)
        *pitch = pitch_of(width);
    return result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    CUdeviceptr wide = 0;
    if (pointer == NULL || pitch == NULL || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = allocate(pitch_of(width) * height, MAP_32BIT, false, &wide);
    if (result == CUDA_SUCCESS) {
        *pointer = (CUdeviceptr_v1)wide;
        *pitch = (unsigned)pitch_of(width);
    }
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    if (flags != 1 && flags != 2) /* attach to all, attach to the host */
        return CUDA_ERROR_INVALID_VALUE;
    return pointer != NULL ? allocate(bytes, 0, true, pointer) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || pointer == 0)
        return result;
    if (stream_actions_pending()) /* a copy may be among them */
        timeline_wait(context->gpu, context->last_mark);
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
    uint64_t seen_bytes, used_bytes;
    limits_view(context->gpu, &seen_bytes, &used_bytes);
    *total_bytes = seen_bytes;
    *free_bytes = seen_bytes - used_bytes;
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
    place_t place;
    if (!pointer_place(pointer, &place) || place.on_host)
        return CUDA_ERROR_INVALID_VALUE;
    if (base != NULL)
        *base = place.start;
    if (bytes != NULL)
        *bytes = place.bytes;
    return CUDA_SUCCESS;
}
