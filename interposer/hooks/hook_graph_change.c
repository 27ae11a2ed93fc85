/* Changes to executable graphs: updating from another graph, or replacing a child graph. */
#include "driver/driver.h"
#include "driver/refusal.h"
#include "memory/footprint.h"
#include "memory/graph.h"

/* Called before the real call: record what the graph needs after the change. */
static CUresult begin(CUgraphExec exec, CUgraph graph, detached_t *detached) {
    footprint_t footprint;
    CUresult result = footprint_of(graph, &footprint);
    if (result != CUDA_SUCCESS)
        return result;
    graph_detach(exec, detached);
    if (graph_record(exec, &footprint))
        return CUDA_SUCCESS;
    graph_reattach(exec, detached);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult end(CUgraphExec exec, const detached_t *detached, CUresult result) {
    if (result == CUDA_SUCCESS)
        graph_drop(detached);
    else
        graph_reattach(exec, detached);
    return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *information) {
    detached_t detached;
    if (!graph_is_tracking() || graph == NULL)
        return REAL(cuGraphExecUpdate_v2)(exec, graph, information);
    CUresult result = begin(exec, graph, &detached);
    return result == CUDA_SUCCESS ? end(exec, &detached, REAL(cuGraphExecUpdate_v2)(exec, graph, information)) : result;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node, int *information) {
    detached_t detached;
    if (!graph_is_tracking() || graph == NULL)
        return REAL(cuGraphExecUpdate)(exec, graph, node, information);
    CUresult result = begin(exec, graph, &detached);
    return result == CUDA_SUCCESS ? end(exec, &detached, REAL(cuGraphExecUpdate)(exec, graph, node, information))
                                  : result;
}

/* Refused if it allocates: the driver does not report which of the old allocations remain. */
static CUresult check_child(hook_t hook, CUgraph child) {
    footprint_t footprint;
    if (!graph_is_tracking() || child == NULL)
        return CUDA_SUCCESS;
    CUresult result = footprint_of(child, &footprint);
    return result == CUDA_SUCCESS && footprint.any ? refusal(hook, "a new child graph that allocates memory") : result;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
    CUresult result = check_child(HOOK_cuGraphExecChildGraphNodeSetParams, child);
    return result == CUDA_SUCCESS ? REAL(cuGraphExecChildGraphNodeSetParams)(exec, node, child) : result;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *parameters) {
    bool is_child = parameters != NULL && parameters->type == CU_GRAPH_NODE_TYPE_GRAPH;
    CUresult result = check_child(HOOK_cuGraphExecNodeSetParams, is_child ? parameters->graph : NULL);
    return result == CUDA_SUCCESS ? REAL(cuGraphExecNodeSetParams)(exec, node, parameters) : result;
}
