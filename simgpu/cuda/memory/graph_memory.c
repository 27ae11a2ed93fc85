/* The memory of graphs that allocate. An allocation gets its address when its node is created; later nodes of the
 * graph may reuse addresses that are free again. There is memory behind the addresses from the first launch or
 * upload.
 *
 * The driver reserves memory for graphs on each GPU: for running graphs, for allocations that graphs left unfreed,
 * and from earlier launches until it is trimmed. Graphs that run in the same stream share memory, since they run one
 * after another. */
#define _GNU_SOURCE
#include "cuda/memory/graph_memory.h"

#include <sys/mman.h>

#include "cuda/device/device.h"
#include "state/slots.h"
#include "time/timeline.h"

#define PAGE_BYTES (2ull << 20)
#define MAX_RUNNING 256u
#define MAX_UNFREED 1024u
#define STARTING UINT64_MAX /* not a mark: as a mark it would belong to a context and might be reached */

/* An executable graph that was launched. It keeps its memory until its work is done. */
typedef struct {
    CUgraphExec exec; /* NULL: free */
    const void *stream;
    gpu_t *gpu;
    uint64_t mark; /* STARTING: its work is not queued yet */
    uint64_t bytes;
    gpu_t *memory_gpu;
} running_t;

typedef struct {
    CUdeviceptr pointer; /* 0: free */
    uint64_t bytes;
    gpu_t *gpu;
} unfreed_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static running_t running[MAX_RUNNING];
static unfreed_t unfreed[MAX_UNFREED];
static uint64_t reserved_bytes[IMAGE_MAX_GPUS], reserved_high_bytes[IMAGE_MAX_GPUS], used_high_bytes[IMAGE_MAX_GPUS];

static uint64_t in_pages(uint64_t bytes) {
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* Reserve addresses on page boundaries, without access until there is memory. */
static CUdeviceptr reserve(uint64_t bytes) {
    char *start = mmap(NULL, bytes + PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return 0;
    return ((CUdeviceptr)(uintptr_t)start + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

CUresult graph_memory_place(graph_memory_t *memory, CUdevice device, size_t bytes, graph_block_t *block) {
    uint64_t whole_bytes = in_pages(bytes);
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    for (unsigned i = 0; i < memory->count; i++) {
        graph_range_t *range = &memory->ranges[i];
        if (range->taken || range->device != device || range->bytes < whole_bytes)
            continue;
        range->taken = true;
        *block = (graph_block_t){range->pointer, bytes, device};
        return CUDA_SUCCESS;
    }
    CUdeviceptr pointer = memory->count < GRAPH_RANGES ? reserve(whole_bytes) : 0;
    if (pointer == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->ranges[memory->count++] = (graph_range_t){pointer, whole_bytes, device, true};
    *block = (graph_block_t){pointer, bytes, device};
    return CUDA_SUCCESS;
}

bool graph_memory_free_place(graph_memory_t *memory, CUdeviceptr pointer) {
    for (unsigned i = 0; i < memory->count; i++) {
        if (memory->ranges[i].pointer != pointer || !memory->ranges[i].taken)
            continue;
        memory->ranges[i].taken = false;
        return true;
    }
    return false;
}

bool graph_memory_join(graph_memory_t *memory, const graph_memory_t *child) {
    for (unsigned i = 0; i < child->count; i++) {
        if (memory->count == GRAPH_RANGES)
            return false;
        memory->ranges[memory->count++] = child->ranges[i];
    }
    return true;
}

/* With the lock held. Returns the bytes that a graph in this stream may not use; NULL: in any stream. */
static uint64_t held_bytes(const gpu_t *gpu, const void *stream, CUgraphExec except) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < MAX_RUNNING; i++) {
        running_t *one = &running[i];
        if (one->exec != NULL && one->mark != STARTING && timeline_reached(one->gpu, one->mark))
            *one = (running_t){.exec = NULL};
        if (one->exec != NULL && one->memory_gpu == gpu && one->exec != except && one->stream != stream)
            bytes += one->bytes;
    }
    for (unsigned i = 0; i < MAX_UNFREED; i++)
        bytes += unfreed[i].pointer != 0 && unfreed[i].gpu == gpu ? unfreed[i].bytes : 0;
    return bytes;
}

static void record_running(CUgraphExec exec, const void *stream, gpu_t *memory_gpu, uint64_t bytes) {
    running_t *place = NULL;
    for (unsigned i = 0; i < MAX_RUNNING; i++) {
        if (running[i].exec == exec && running[i].memory_gpu == memory_gpu) {
            place = &running[i];
            break;
        }
        if (place == NULL && running[i].exec == NULL)
            place = &running[i];
    }
    if (place != NULL)
        *place = (running_t){exec, stream, memory_gpu, STARTING, bytes, memory_gpu};
}

static void record_unfreed(const graph_range_t *range, gpu_t *gpu) {
    for (unsigned i = 0; i < MAX_UNFREED; i++) {
        if (unfreed[i].pointer != 0)
            continue;
        unfreed[i] = (unfreed_t){range->pointer, range->bytes, gpu};
        return;
    }
}

static void raise_to(uint64_t *high_bytes, uint64_t bytes) {
    if (*high_bytes < bytes)
        *high_bytes = bytes;
}

/* With the lock held. */
static bool reserve_bytes(gpu_t *gpu, uint64_t bytes) {
    uint64_t *has_bytes = &reserved_bytes[gpu->index];
    if (bytes > *has_bytes && !slots_charge(gpu, bytes - *has_bytes))
        return false;
    if (bytes > *has_bytes)
        *has_bytes = bytes;
    raise_to(&reserved_high_bytes[gpu->index], *has_bytes);
    raise_to(&used_high_bytes[gpu->index], bytes);
    return true;
}

CUresult graph_memory_begin(CUgraphExec exec, const graph_memory_t *memory, const void *stream) {
    CUresult result = CUDA_SUCCESS;
    uint64_t bytes[IMAGE_MAX_GPUS] = {0};
    gpu_t *gpus[IMAGE_MAX_GPUS] = {NULL};
    for (unsigned i = 0; i < memory->count; i++) {
        gpu_t *gpu;
        if (driver_gpu(memory->ranges[i].device, &gpu) != CUDA_SUCCESS)
            continue;
        gpus[gpu->index] = gpu;
        bytes[gpu->index] += memory->ranges[i].bytes;
    }
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < IMAGE_MAX_GPUS && result == CUDA_SUCCESS; i++) {
        if (gpus[i] != NULL && !reserve_bytes(gpus[i], held_bytes(gpus[i], stream, exec) + bytes[i]))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (unsigned i = 0; i < IMAGE_MAX_GPUS && result == CUDA_SUCCESS; i++) {
        if (gpus[i] != NULL)
            record_running(exec, stream, gpus[i], bytes[i]);
    }
    for (unsigned i = 0; i < memory->count && result == CUDA_SUCCESS; i++) {
        const graph_range_t *range = &memory->ranges[i];
        gpu_t *gpu;
        (void)mprotect((void *)(uintptr_t)range->pointer, range->bytes, PROT_READ | PROT_WRITE);
        if (range->taken && driver_gpu(range->device, &gpu) == CUDA_SUCCESS)
            record_unfreed(range, gpu);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

void graph_memory_end_at(CUgraphExec exec, gpu_t *gpu, uint64_t mark) {
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < MAX_RUNNING; i++) {
        if (running[i].exec != exec)
            continue;
        running[i].gpu = gpu;
        running[i].mark = mark;
    }
    pthread_mutex_unlock(&mutex);
}

/* Running work keeps its memory until it is done. */
void graph_memory_detach(CUgraphExec exec) {
    static struct CUgraphExec_st *const destroyed = (void *)1;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < MAX_RUNNING; i++) {
        if (running[i].exec == exec)
            running[i].exec = destroyed;
    }
    pthread_mutex_unlock(&mutex);
}

bool graph_memory_free(CUdeviceptr pointer) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < MAX_UNFREED && !found; i++) {
        found = pointer != 0 && unfreed[i].pointer == pointer;
        if (found)
            unfreed[i].pointer = 0;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

bool graph_memory_find(CUdeviceptr address, memory_place_t *place) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < MAX_UNFREED && !found; i++) {
        found = unfreed[i].pointer != 0 && address - unfreed[i].pointer < unfreed[i].bytes;
        if (found)
            *place = (memory_place_t){.start = unfreed[i].pointer, .bytes = unfreed[i].bytes, .gpu = unfreed[i].gpu};
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    uint64_t keep_bytes = held_bytes(gpu, NULL, NULL);
    if (reserved_bytes[gpu->index] > keep_bytes) {
        slots_refund(gpu, reserved_bytes[gpu->index] - keep_bytes);
        reserved_bytes[gpu->index] = keep_bytes;
    }
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result == CUDA_SUCCESS && (value == NULL || attribute < GRAPH_USED || attribute > GRAPH_RESERVED_HIGH))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&mutex);
    *(uint64_t *)value = attribute == GRAPH_USED        ? held_bytes(gpu, NULL, NULL)
                         : attribute == GRAPH_USED_HIGH ? used_high_bytes[gpu->index]
                         : attribute == GRAPH_RESERVED  ? reserved_bytes[gpu->index]
                                                        : reserved_high_bytes[gpu->index];
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
