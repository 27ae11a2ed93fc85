/* Executable graphs: instantiation, update and launch. */
#include <stdlib.h>

#include "cuda/copy/copy.h"
#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/graph/graph.h"
#include "cuda/kernel/launch.h"
#include "cuda/stream/stream.h"

#define WHOLE 100u /* the part of the GPU that a graph takes */

static size_t graph_work_count(CUgraph graph) {
    size_t count = 0;
    for (CUgraphNode node = graph->nodes; node != NULL; node = node->next)
        count += (node->work != NULL) + (node->child != NULL ? graph_work_count(node->child) : 0);
    return count;
}

static void graph_work_list(CUgraph graph, graph_work_t **at) {
    for (CUgraphNode node = graph->nodes; node != NULL; node = node->next) {
        if (node->work != NULL)
            *(*at)++ = *node->work;
        if (node->child != NULL)
            graph_work_list(node->child, at);
    }
}

/* A hash that is the same for graphs with the same kinds of nodes in the same order. */
static uint64_t shape_of(CUgraph graph, uint64_t shape) {
    for (CUgraphNode node = graph->nodes; node != NULL; node = node->next) {
        shape = (shape ^ (uint64_t)node->type) * 0x100000001b3u + 1;
        if (node->child != NULL)
            shape = shape_of(node->child, shape) * 3;
    }
    return shape;
}

/* Only one executable graph at a time can use the addresses of a graph that allocates. */
static bool is_free(CUgraph graph, CUgraphExec exec) {
    return graph->memory.count == 0 || graph->exec == NULL || graph->exec == exec;
}

static void detach(CUgraphExec exec) {
    if (exec->graph != NULL)
        exec->graph->exec = NULL;
    exec->graph = NULL;
}

static bool copy_graph(CUgraphExec exec, CUgraph graph) {
    size_t count = graph_work_count(graph);
    graph_work_t *works = count > 0 ? calloc(count, sizeof *works) : NULL;
    if (count > 0 && works == NULL)
        return false;
    graph_work_list(graph, &(graph_work_t *){works});
    detach(exec);
    free(exec->works);
    exec->works = works;
    exec->work_count = count;
    exec->shape = shape_of(graph, 1);
    exec->duration_ns = graph->duration_ns;
    exec->memory = graph->memory;
    if (graph->memory.count == 0)
        return true;
    exec->graph = graph;
    graph->exec = exec;
    return true;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    handle_check(graph, HANDLE_GRAPH);
    if (exec == NULL || graph == NULL || !is_free(graph, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    *exec = handle_make(HANDLE_GRAPH_EXEC, sizeof **exec);
    if (*exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*exec)->flags = flags;
    if (copy_graph(*exec, graph))
        return driver_ready();
    handle_end(*exec, HANDLE_GRAPH_EXEC);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *text, size_t size) {
    (void)node;
    if (text != NULL && size > 0)
        *text = '\0';
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *text, size_t size) {
    return cuGraphInstantiate_v2(exec, graph, node, text, size);
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags) {
    handle_check(exec, HANDLE_GRAPH_EXEC);
    if (exec == NULL || flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return driver_ready();
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    if (parameters == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuGraphInstantiateWithFlags(exec, graph, parameters->flags);
    if (result == CUDA_SUCCESS && (parameters->flags & GRAPH_UPLOAD) != 0)
        result = cuGraphUpload(*exec, parameters->hUploadStream);
    return result;
}

/* Work that is already launched keeps the old content. */
static CUresult update(CUgraphExec exec, CUgraph graph, int *result_p) {
    handle_check(exec, HANDLE_GRAPH_EXEC);
    handle_check(graph, HANDLE_GRAPH);
    if (exec == NULL || graph == NULL || result_p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool same = exec->shape == shape_of(graph, 1);
    *result_p = !same ? GRAPH_UPDATE_TOPOLOGY_CHANGED : is_free(graph, exec) ? 0 : GRAPH_UPDATE_NOT_SUPPORTED;
    if (*result_p != 0)
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    graph_memory_detach(exec);
    return copy_graph(exec, graph) ? driver_ready() : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *result) {
    (void)error_node;
    return update(exec, graph, result);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    return info != NULL ? update(exec, graph, &info->result) : CUDA_ERROR_INVALID_VALUE;
}

/* Changing single nodes of an executable graph is not simulated. */
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
    return exec != NULL && node != NULL && child != NULL ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *parameters) {
    return exec != NULL && node != NULL && parameters != NULL ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    handle_check(exec, HANDLE_GRAPH_EXEC);
    graph_memory_detach(exec);
    detach(exec);
    free(exec->works);
    handle_end(exec, HANDLE_GRAPH_EXEC);
    return driver_ready();
}

/* Copies and fills, which take no time, come first, host functions last. */
static CUresult graph_work_begin(CUgraphExec exec, CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < exec->work_count && result == CUDA_SUCCESS; i++) {
        graph_work_t *work = &exec->works[i];
        if (work->kind == WORK_COPY)
            result = work_in(WORK_COPY, &work->copy, stream);
        if (work->kind == WORK_FILL)
            result = work_in(WORK_FILL, &work->fill, stream);
    }
    return result;
}

static CUresult graph_work_end(CUgraphExec exec, CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < exec->work_count && result == CUDA_SUCCESS; i++) {
        const graph_work_t *work = &exec->works[i];
        if (work->kind == WORK_HOST)
            result = cuLaunchHostFunc(stream, work->call.function, work->call.data);
    }
    return result;
}

static CUresult run(CUgraphExec exec, CUcontext context, CUstream stream) {
    CUresult result = graph_work_begin(exec, stream);
    if (result == CUDA_SUCCESS)
        result = launch_submit(context, stream, false, &(kernel_t){.duration_ns = exec->duration_ns, .percent = WHOLE});
    return result == CUDA_SUCCESS ? graph_work_end(exec, stream) : result;
}

static CUresult launch(CUgraphExec exec, CUstream stream, bool per_thread, bool uploads) {
    CUcontext context;
    handle_check(exec, HANDLE_GRAPH_EXEC);
    CUresult result = exec != NULL ? stream_context(stream, &context) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    _Atomic uint64_t *end = stream_end(context, stream, per_thread);
    result = graph_memory_begin(exec, &exec->memory, (const void *)end);
    if (result != CUDA_SUCCESS)
        return result;
    if (!uploads)
        result = run(exec, context, stream_of(stream, per_thread));
    graph_memory_end_at(exec, context->gpu, *end);
    return result;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, false, true);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, true, true);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, false, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, true, false);
}
