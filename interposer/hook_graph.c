/* Nodes of graphs: those that allocate are refused, all others pass. */
#include "driver.h"
#include "refusal.h"

static bool allocates(const CUgraphNodeParams *parameters) {
    return parameters != NULL && parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
}

CUresult cuGraphAddNode_v3(void *node, void *graph, const void *before, const void *edges, size_t count,
                           CUgraphNodeParams *parameters) {
    if (allocates(parameters))
        return refusal(HOOK_cuGraphAddNode_v3, "memory allocated by a graph node");
    return REAL(cuGraphAddNode_v3)(node, graph, before, edges, count, parameters);
}

CUresult cuGraphAddNode_v2(void *node, void *graph, const void *before, const void *edges, size_t count,
                           CUgraphNodeParams *parameters) {
    if (allocates(parameters))
        return refusal(HOOK_cuGraphAddNode_v2, "memory allocated by a graph node");
    return REAL(cuGraphAddNode_v2)(node, graph, before, edges, count, parameters);
}

CUresult cuGraphAddNode(void *node, void *graph, const void *before, size_t count, CUgraphNodeParams *parameters) {
    if (allocates(parameters))
        return refusal(HOOK_cuGraphAddNode, "memory allocated by a graph node");
    return REAL(cuGraphAddNode)(node, graph, before, count, parameters);
}
