/* Device memory. Each allocation is charged to the GPU and backed by private host memory that takes no space until
 * it is written to, so copies really copy, and 80 GiB fit into a small machine. */
#define _GNU_SOURCE
#include "cuda/memory/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "cuda/device/context.h"
#include "cuda/memory/graph_memory.h"
#include "state/slots.h"

#define PITCH_BYTES 512u

/* Memory in blocks, if the description asks for it, as some drivers do: a large allocation takes whole blocks, small
 * ones of a process share blocks. Otherwise memory is charged to the byte. */
#define UNIT_BYTES 512u /* granularity of small allocations */

typedef struct block block_t;

struct block {
    block_t *next;
    gpu_t *gpu;
    uint64_t used_bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static block_t *blocks;

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static bool is_small(const gpu_t *gpu, uint64_t bytes) {
    return bytes <= gpu->image->block_bytes / 2;
}

/* With the lock held. Returns a block with room, or a new one. Only amounts are simulated, not positions in a block. */
static block_t *find_block(gpu_t *gpu, uint64_t bytes) {
    for (block_t *block = blocks; block != NULL; block = block->next) {
        if (block->gpu == gpu && gpu->image->block_bytes - block->used_bytes >= bytes)
            return block;
    }
    block_t *block = calloc(1, sizeof *block);
    if (block == NULL || !slots_charge(gpu, gpu->image->block_bytes)) {
        free(block);
        return NULL;
    }
    *block = (block_t){.next = blocks, .gpu = gpu};
    blocks = block;
    return block;
}

static bool block_charge(gpu_t *gpu, uint64_t bytes, block_t **shared) {
    *shared = NULL;
    if (gpu->image->block_bytes == 0)
        return slots_charge(gpu, bytes);
    if (!is_small(gpu, bytes))
        return slots_charge(gpu, round_up(bytes, gpu->image->block_bytes));
    pthread_mutex_lock(&mutex);
    *shared = find_block(gpu, round_up(bytes, UNIT_BYTES));
    if (*shared != NULL)
        (*shared)->used_bytes += round_up(bytes, UNIT_BYTES);
    pthread_mutex_unlock(&mutex);
    return *shared != NULL;
}

/* With the lock held. */
static void release_block(block_t *block) {
    block_t **link = &blocks;
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    slots_refund(block->gpu, block->gpu->image->block_bytes);
    free(block);
}

static void block_refund(gpu_t *gpu, uint64_t bytes, block_t *shared) {
    if (shared == NULL) {
        slots_refund(gpu, gpu->image->block_bytes != 0 ? round_up(bytes, gpu->image->block_bytes) : bytes);
        return;
    }
    pthread_mutex_lock(&mutex);
    shared->used_bytes -= round_up(bytes, UNIT_BYTES);
    if (shared->used_bytes == 0)
        release_block(shared);
    pthread_mutex_unlock(&mutex);
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

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    return pointer != NULL ? allocate(bytes, 0, false, pointer) : CUDA_ERROR_INVALID_VALUE;
}

/* The form before CUDA 3.2, with pointers of 32 bits. */
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
    if (flags != 1 && flags != 2) /* attach global, attach host */
        return CUDA_ERROR_INVALID_VALUE;
    return pointer != NULL ? allocate(bytes, 0, true, pointer) : CUDA_ERROR_INVALID_VALUE;
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
    slots_memory_info(context->gpu, &seen_bytes, &used_bytes);
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

static void refund(const allocation_t *allocation) {
    if (allocation->pool != NULL)
        pool_release(allocation, NULL);
    else
        block_refund(allocation->gpu, allocation->bytes, allocation->block);
}

CUresult memory_free(CUdeviceptr pointer, const free_point_t *point) {
    allocation_t allocation;
    if (!memory_remove(pointer, &allocation))
        return graph_memory_free(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (allocation.pool != NULL)
        pool_release(&allocation, point);
    else
        refund(&allocation);
    return CUDA_SUCCESS;
}

void memory_free_context(CUcontext context) {
    memory_remove_context(context, refund);
}
