/* Graphs, their nodes, and executable graphs. */
#ifndef SIMGPU_CUDA_GRAPH_H
#define SIMGPU_CUDA_GRAPH_H

#include "cuda/device/handle.h"
#include "cuda/graph/work.h"
#include "cuda/memory/graph_memory.h"

struct CUgraphNode_st {
    handle_head_t head;
    CUgraphNode next;
    int type;
    CUgraph child;
    graph_block_t block; /* the allocation; of a free node, its pointer */
    graph_work_t *work;  /* NULL: none */
    uint64_t duration_ns;
    CUDA_KERNEL_NODE_PARAMS kernel;
};

struct CUgraph_st {
    handle_head_t head;
    CUcontext context;
    _Atomic uint64_t duration_ns;
    CUgraphNode nodes, *last;
    size_t count;
    graph_memory_t memory;
    CUgraphExec exec; /* the executable graph that uses its memory; there can be only one */
    CUstream origin;  /* the stream whose capture it is, or was */
    uint64_t capture_id;
};

struct CUgraphExec_st {
    handle_head_t head;
    CUgraph graph; /* the graph whose memory it uses; NULL: none, or destroyed */
    uint64_t shape;
    uint64_t duration_ns;
    graph_memory_t memory;
    unsigned long long flags;
    graph_work_t *works;
    size_t work_count;
};

/* Append a node. NULL: no memory. */
CUgraphNode graph_add(CUgraph graph, int type);
CUresult graph_add_work(CUgraphNode *node, CUgraph graph, const graph_work_t *work);

/* Append a kernel of this duration. */
void graph_append(CUgraph graph, uint64_t duration_ns);
void graph_begin_capture(CUgraph graph, CUstream origin);
void graph_clear(CUgraph graph);
CUstream graph_capture_origin(CUgraph graph);
uint64_t graph_capture_id(CUgraph graph); /* unique for each capture, never 0 */
CUcontext graph_context(CUgraph graph);
bool graph_append_work(CUgraph graph, work_t work, const void *what);
CUresult graph_allocate(CUgraph graph, CUdevice device, size_t bytes, CUdeviceptr *pointer, CUgraphNode *node_p);
CUresult graph_free(CUgraph graph, CUdeviceptr pointer);

#endif
