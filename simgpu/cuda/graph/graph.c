/* Graphs: nodes that are launched together. Nodes run in the order in which they were added, which satisfies all
 * dependencies. A graph consists of the total run time of its kernels, its other work, and the memory that it
 * allocates (memory/graph_memory.c). */
#include "cuda/graph/graph.h"

#include <stdlib.h>

#include "cuda/device/context.h"
#include "cuda/device/device.h"

static CUresult make(CUgraph *graph) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    *graph = handle_make(HANDLE_GRAPH, sizeof **graph);
    if (*graph == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*graph)->context = context;
    (*graph)->last = &(*graph)->nodes;
    return CUDA_SUCCESS;
}

CUgraphNode graph_add(CUgraph graph, int type) {
    handle_check(graph, HANDLE_GRAPH);
    CUgraphNode node = handle_make(HANDLE_GRAPH_NODE, sizeof *node);
    if (node == NULL)
        return NULL;
    node->type = type;
    *graph->last = node;
    graph->last = &node->next;
    graph->count++;
    return node;
}

CUcontext graph_context(CUgraph graph) {
    return graph->context;
}

void graph_begin_capture(CUgraph graph, CUstream origin) {
    static _Atomic uint64_t last_id;
    graph->origin = origin;
    graph->capture_id = ++last_id;
}

CUstream graph_capture_origin(CUgraph graph) {
    return graph->origin;
}

uint64_t graph_capture_id(CUgraph graph) {
    return graph->capture_id;
}

void graph_append(CUgraph graph, uint64_t duration_ns) {
    CUgraphNode node = graph_add(graph, GRAPH_KERNEL);
    if (node != NULL)
        node->duration_ns = duration_ns;
    graph->duration_ns += duration_ns;
}

static const int node_types[] = {[WORK_COPY] = GRAPH_COPY, [WORK_FILL] = GRAPH_FILL, [WORK_HOST] = GRAPH_HOST};

CUresult graph_add_work(CUgraphNode *node_p, CUgraph graph, const graph_work_t *work) {
    CUgraphNode node = graph_add(graph, node_types[work->kind]);
    graph_work_t *copy = malloc(sizeof *copy);
    if (node == NULL || copy == NULL) {
        free(copy);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *copy = *work;
    node->work = copy;
    if (node_p != NULL)
        *node_p = node;
    return driver_ready();
}

bool graph_append_work(CUgraph graph, work_t kind, const void *what) {
    graph_work_t work = {.kind = kind};
    if (kind == WORK_COPY)
        work.copy = *(const copy_t *)what;
    else if (kind == WORK_FILL)
        work.fill = *(const fill_t *)what;
    else
        work.call = *(const CUDA_HOST_NODE_PARAMS *)what;
    return graph_add_work(NULL, graph, &work) == CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    return graph != NULL && flags == 0 ? make(graph) : CUDA_ERROR_INVALID_VALUE;
}

void graph_clear(CUgraph graph) {
    while (graph->nodes != NULL) {
        CUgraphNode node = graph->nodes;
        graph->nodes = node->next;
        free(node->work);
        handle_end(node, HANDLE_GRAPH_NODE);
    }
    graph->last = &graph->nodes;
    graph->count = 0;
    graph->duration_ns = 0;
    graph->memory = (graph_memory_t){.count = 0};
}

CUresult cuGraphDestroy(CUgraph graph) {
    if (graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    handle_check(graph, HANDLE_GRAPH);
    graph_clear(graph);
    if (graph->exec != NULL)
        graph->exec->graph = NULL;
    handle_end(graph, HANDLE_GRAPH);
    return driver_ready();
}

CUresult graph_allocate(CUgraph graph, CUdevice device, size_t bytes, CUdeviceptr *pointer, CUgraphNode *node_p) {
    graph_block_t block;
    CUresult result = graph_memory_place(&graph->memory, device, bytes, &block);
    if (result != CUDA_SUCCESS)
        return result;
    CUgraphNode node = graph_add(graph, GRAPH_MEM_ALLOC);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->block = block;
    *pointer = block.pointer;
    if (node_p != NULL)
        *node_p = node;
    return CUDA_SUCCESS;
}

CUresult graph_free(CUgraph graph, CUdeviceptr pointer) {
    if (!graph_memory_free_place(&graph->memory, pointer))
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode node = graph_add(graph, GRAPH_MEM_FREE);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->block.pointer = pointer;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    (void)before;
    (void)count;
    if (node == NULL || graph == NULL || parameters == NULL || parameters->bytesize == 0 ||
        parameters->poolProps.location.type != CU_MEM_LOCATION_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    return graph_allocate(graph, parameters->poolProps.location.id, parameters->bytesize, &parameters->dptr, node);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                               CUdeviceptr pointer) {
    (void)before;
    (void)count;
    if (node == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = graph_free(graph, pointer);
    if (result == CUDA_SUCCESS)
        for (*node = graph->nodes; (*node)->next != NULL;)
            *node = (*node)->next;
    return result;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, const void *edges, size_t count,
                           CUgraphNodeParams *parameters) {
    (void)edges;
    if (parameters == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (parameters->type) {
    case GRAPH_MEM_ALLOC:
        return cuGraphAddMemAllocNode(node, graph, before, count, &parameters->alloc);
    case GRAPH_MEM_FREE:
        return cuGraphAddMemFreeNode(node, graph, before, count, parameters->free.dptr);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, const void *edges, size_t count,
                           CUgraphNodeParams *parameters) {
    return cuGraphAddNode_v2(node, graph, before, edges, count, parameters);
}

/* The parent takes ownership of the child, since a graph that allocates may not be cloned. */
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                                  CUgraph child) {
    (void)before;
    (void)count;
    handle_check(child, HANDLE_GRAPH);
    if (node == NULL || graph == NULL || child == NULL || child == graph)
        return CUDA_ERROR_INVALID_VALUE;
    *node = graph_add(graph, GRAPH_CHILD);
    if (*node == NULL || !graph_memory_join(&graph->memory, &child->memory))
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*node)->child = child;
    graph->duration_ns += child->duration_ns;
    return driver_ready();
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    handle_check(graph, HANDLE_GRAPH);
    if (graph == NULL || count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    size_t at = 0;
    for (CUgraphNode node = graph->nodes; nodes != NULL && node != NULL && at < *count; node = node->next)
        nodes[at++] = node;
    *count = nodes != NULL ? at : graph->count;
    return driver_ready();
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    handle_check(node, HANDLE_GRAPH_NODE);
    if (node == NULL || type == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return driver_ready();
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    handle_check(node, HANDLE_GRAPH_NODE);
    if (node == NULL || parameters == NULL || node->type != GRAPH_MEM_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    *parameters = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, node->block.device}},
        .bytesize = node->block.bytes,
        .dptr = node->block.pointer};
    return driver_ready();
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    handle_check(node, HANDLE_GRAPH_NODE);
    if (node == NULL || graph == NULL || node->type != GRAPH_CHILD)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child;
    return driver_ready();
}
