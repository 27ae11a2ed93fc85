/* Graphs with allocations: adding nodes, instantiating, and uploading. Launches reach graph.c from the gate. */
#include "cuda/device.h"
#include "driver/driver.h"
#include "memory/cache.h"
#include "memory/footprint.h"
#include "memory/graph.h"
#include "session/join.h"
#include "share/share.h"

/* Reject an allocation on a GPU outside the share: the graph could never be launched. */
static CUresult check_parameters(const CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    CUdevice device;
    uint32_t gpu;
    if (!session_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    graph_begin_tracking();
    if (parameters == NULL || !device_of_location(&parameters->poolProps.location, &device))
        return CUDA_SUCCESS;
    CUresult result = device_gpu(device, &gpu);
    return result == CUDA_SUCCESS && gpu == SHARE_NO_GPU ? CUDA_ERROR_NOT_PERMITTED : result;
}

static CUresult check_node(const CUgraphNodeParams *parameters) {
    bool allocates = parameters != NULL && parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    return allocates ? check_parameters(&parameters->alloc) : CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    CUresult result = check_parameters(parameters);
    return result == CUDA_SUCCESS ? REAL(cuGraphAddMemAllocNode)(node, graph, before, count, parameters) : result;
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, const void *edges, size_t count,
                           CUgraphNodeParams *parameters) {
    CUresult result = check_node(parameters);
    return result == CUDA_SUCCESS ? REAL(cuGraphAddNode_v3)(node, graph, before, edges, count, parameters) : result;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, const void *edges, size_t count,
                           CUgraphNodeParams *parameters) {
    CUresult result = check_node(parameters);
    return result == CUDA_SUCCESS ? REAL(cuGraphAddNode_v2)(node, graph, before, edges, count, parameters) : result;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                        CUgraphNodeParams *parameters) {
    CUresult result = check_node(parameters);
    return result == CUDA_SUCCESS ? REAL(cuGraphAddNode)(node, graph, before, count, parameters) : result;
}

/* Called before the real call: find what the graph will need. */
static CUresult measure(CUgraph graph, footprint_t *footprint) {
    footprint->any = false;
    return graph_is_tracking() ? footprint_of(graph, footprint) : CUDA_SUCCESS;
}

static CUresult instantiated(CUresult result, const CUgraphExec *exec, const footprint_t *footprint) {
    if (result != CUDA_SUCCESS || !footprint->any || graph_record(*exec, footprint))
        return result;
    (void)cuGraphExecDestroy(*exec);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, uint64_t flags) {
    footprint_t footprint;
    CUresult result = measure(graph, &footprint);
    return result == CUDA_SUCCESS
               ? instantiated(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, &footprint)
               : result;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *text, size_t size) {
    footprint_t footprint;
    CUresult result = measure(graph, &footprint);
    return result == CUDA_SUCCESS
               ? instantiated(REAL(cuGraphInstantiate_v2)(exec, graph, node, text, size), exec, &footprint)
               : result;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *text, size_t size) {
    footprint_t footprint;
    CUresult result = measure(graph, &footprint);
    return result == CUDA_SUCCESS
               ? instantiated(REAL(cuGraphInstantiate)(exec, graph, node, text, size), exec, &footprint)
               : result;
}

typedef CUresult with_parameters_t(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters);
typedef CUresult upload_t(CUgraphExec exec, CUstream stream);

/* The upload flag takes memory, so it is removed from this call, and the upload is a separate, charged call. */
static CUresult with_parameters(with_parameters_t *real, upload_t *upload, CUgraphExec *exec, CUgraph graph,
                                CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    footprint_t footprint;
    CUresult result = measure(graph, &footprint);
    if (result != CUDA_SUCCESS || !footprint.any || parameters == NULL)
        return result == CUDA_SUCCESS ? real(exec, graph, parameters) : result;
    uint64_t flags = parameters->flags;
    parameters->flags &= ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    result = instantiated(real(exec, graph, parameters), exec, &footprint);
    parameters->flags = flags;
    if (result != CUDA_SUCCESS || !(flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
        return result;
    result = upload(*exec, parameters->hUploadStream);
    if (result != CUDA_SUCCESS)
        (void)cuGraphExecDestroy(*exec);
    return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return with_parameters(REAL(cuGraphInstantiateWithParams), cuGraphUpload, exec, graph, parameters);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return with_parameters(REAL(cuGraphInstantiateWithParams_ptsz), cuGraphUpload_ptsz, exec, graph, parameters);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return graph_is_tracking() ? graph_start(REAL(cuGraphUpload), exec, stream, false)
                               : REAL(cuGraphUpload)(exec, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return graph_is_tracking() ? graph_start(REAL(cuGraphUpload_ptsz), exec, stream, true)
                               : REAL(cuGraphUpload_ptsz)(exec, stream);
}

/* Detached first, because after the call the driver may reuse the handle at once. */
CUresult cuGraphExecDestroy(CUgraphExec exec) {
    detached_t detached;
    if (!graph_is_tracking())
        return REAL(cuGraphExecDestroy)(exec);
    graph_detach(exec, &detached);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (result == CUDA_SUCCESS)
        graph_drop(&detached);
    else
        graph_reattach(exec, &detached);
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    uint32_t gpu;
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (session_join() && device_gpu(device, &gpu) == CUDA_SUCCESS && gpu != SHARE_NO_GPU)
        cache_refresh(gpu);
    return result;
}
