/* Nodes of graphs: kernels, copies, fills, host functions, and empty nodes. */
#include "cuda/copy/copy.h"
#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/graph/graph.h"
#include "cuda/kernel/module.h"

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *parameters) {
    (void)before;
    (void)count;
    uint64_t duration_ns;
    if (node == NULL || graph == NULL || parameters == NULL || parameters->func == NULL ||
        !kernel_duration(parameters->func, graph->context->gpu, parameters->kernelParams, &duration_ns))
        return CUDA_ERROR_INVALID_VALUE;
    *node = graph_add(graph, GRAPH_KERNEL);
    if (*node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*node)->kernel = *parameters;
    (*node)->duration_ns = duration_ns;
    graph->duration_ns += duration_ns;
    return driver_ready();
}

/* The kernel's own parameters stay in the program's memory. */
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters) {
    handle_check(node, HANDLE_GRAPH_NODE);
    if (node == NULL || parameters == NULL || node->type != GRAPH_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    *parameters = node->kernel;
    return driver_ready();
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                              const CUDA_MEMCPY3D *parameters, CUcontext context) {
    (void)before;
    (void)count;
    (void)context;
    graph_work_t work = {.kind = WORK_COPY};
    CUresult result = copy_shape_3d(parameters, &work.copy);
    if (result == CUDA_SUCCESS && (node == NULL || graph == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? graph_add_work(node, graph, &work) : result;
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context) {
    (void)before;
    (void)count;
    (void)context;
    if (node == NULL || graph == NULL || parameters == NULL ||
        (parameters->elementSize != 1 && parameters->elementSize != 2 && parameters->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    const graph_work_t work = {
        .kind = WORK_FILL,
        .fill = {parameters->dst, parameters->pitch, parameters->value, parameters->elementSize, parameters->width,
                 parameters->height},
    };
    return graph_add_work(node, graph, &work);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                            const CUDA_HOST_NODE_PARAMS *parameters) {
    (void)before;
    (void)count;
    if (node == NULL || graph == NULL || parameters == NULL || parameters->function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return graph_add_work(node, graph, &(graph_work_t){.kind = WORK_HOST, .call = *parameters});
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count) {
    (void)before;
    (void)count;
    if (node == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *node = graph_add(graph, GRAPH_EMPTY);
    return *node != NULL ? driver_ready() : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Dependencies have no effect: nodes run in the order in which they were added. */
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    return graph != NULL && (count == 0 || (from != NULL && to != NULL)) ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const void *edges,
                                   size_t count) {
    (void)edges;
    return cuGraphAddDependencies(graph, from, to, count);
}
