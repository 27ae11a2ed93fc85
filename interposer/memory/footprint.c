#define _GNU_SOURCE
#include "memory/footprint.h"

#include <sys/mman.h>

#include "base/table.h"
#include "cuda/device.h"
#include "driver/driver.h"
#include "driver/refusal.h"
#include "share/share.h"

#define PAGE_BITS 21
#define MAX_DEPTH 64 /* nested graphs */

typedef struct {
    footprint_t *footprint;
    table_t pages;
} walk_t;

static CUresult add(walk_t *walk, const CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    CUdevice device;
    uint32_t gpu;
    entry_t old;
    if (!device_of_location(&parameters->poolProps.location, &device))
        return CUDA_SUCCESS;
    CUresult result = device_gpu(device, &gpu);
    if (result != CUDA_SUCCESS || parameters->bytesize == 0)
        return result;
    if (gpu == SHARE_NO_GPU)
        return CUDA_ERROR_NOT_PERMITTED;
    uint64_t last = (parameters->dptr + parameters->bytesize - 1) >> PAGE_BITS;
    for (uint64_t page = parameters->dptr >> PAGE_BITS; page <= last; page++) {
        const entry_t entry = {.key = page + 1}; /* keys are not 0 */
        if (!table_put(&walk->pages, &entry, &old))
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (old.key == 0)
            walk->footprint->bytes[gpu] += 1ull << PAGE_BITS;
    }
    walk->footprint->devices[gpu] = device;
    walk->footprint->any = true;
    return CUDA_SUCCESS;
}

static CUresult walk_graph(walk_t *walk, CUgraph graph, unsigned depth);

/* Bodies of conditional nodes are skipped: CUDA allows no allocations in them. */
static CUresult walk_node(walk_t *walk, CUgraphNode node, unsigned depth) {
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    CUgraph child;
    int type;
    CUresult result = REAL(cuGraphNodeGetType)(node, &type);
    if (result != CUDA_SUCCESS)
        return result;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        result = REAL(cuGraphMemAllocNodeGetParams)(node, &parameters);
        return result == CUDA_SUCCESS ? add(walk, &parameters) : result;
    }
    if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
        if (depth == MAX_DEPTH)
            return refusal(HOOK_cuGraphInstantiateWithFlags, "a graph nested this deeply");
        result = REAL(cuGraphChildGraphNodeGetGraph)(node, &child);
        return result == CUDA_SUCCESS ? walk_graph(walk, child, depth + 1) : result;
    }
    return CUDA_SUCCESS;
}

static CUresult walk_graph(walk_t *walk, CUgraph graph, unsigned depth) {
    size_t count = 0;
    CUresult result = REAL(cuGraphGetNodes)(graph, NULL, &count);
    if (result != CUDA_SUCCESS || count == 0)
        return result;
    size_t bytes = count * sizeof(CUgraphNode);
    CUgraphNode *nodes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = REAL(cuGraphGetNodes)(graph, nodes, &count);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = walk_node(walk, nodes[i], depth);
    munmap(nodes, bytes);
    return result;
}

CUresult footprint_of(CUgraph graph, footprint_t *footprint) {
    walk_t walk = {.footprint = footprint, .pages = TABLE_INITIALIZER};
    *footprint = (footprint_t){.any = false};
    CUresult result = walk_graph(&walk, graph, 0);
    table_clear(&walk.pages);
    return result;
}
