#ifndef SIMGPU_CUDA_GRAPH_MEMORY_H
#define SIMGPU_CUDA_GRAPH_MEMORY_H

#include "cuda/memory/place.h"

/* The addresses of a graph's allocations. graph_memory_place finds one for a new allocation, graph_memory_free_place
 * frees it for later nodes, graph_memory_join adds those of a child graph. */
#define GRAPH_RANGES 256u
typedef struct {
    CUdeviceptr pointer;
    uint64_t bytes;
    CUdevice device;
    bool taken; /* by an allocation that no later node frees */
} graph_range_t;
typedef struct {
    graph_range_t ranges[GRAPH_RANGES];
    unsigned count;
} graph_memory_t;
typedef struct {
    CUdeviceptr pointer;
    size_t bytes;
    CUdevice device;
} graph_block_t;
CUresult graph_memory_place(graph_memory_t *memory, CUdevice device, size_t bytes, graph_block_t *block);
bool graph_memory_free_place(graph_memory_t *memory, CUdeviceptr pointer);
bool graph_memory_join(graph_memory_t *memory, const graph_memory_t *child);
/* Provide memory before a launch, set the mark at which it ends, and release it when the executable graph is
 * destroyed. */
CUresult graph_memory_begin(CUgraphExec exec, const graph_memory_t *memory, const void *stream);
void graph_memory_end_at(CUgraphExec exec, gpu_t *gpu, uint64_t mark);
void graph_memory_detach(CUgraphExec exec);
/* Free an allocation that a graph left unfreed. False: there is none at this address. */
bool graph_memory_free(CUdeviceptr pointer);

bool graph_memory_find(CUdeviceptr address, memory_place_t *place);

#endif
