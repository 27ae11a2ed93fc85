/* What graphs and executable graphs are made of. */
#ifndef SIMGPU_CUDA_GRAPH_H
#define SIMGPU_CUDA_GRAPH_H

#include "cuda_copy.h"

/* What a node does besides kernels and memory, when the graph is launched. */
typedef struct {
    work_t kind;
    union {
        copy_t copy;
        fill_t fill;
        CUDA_HOST_NODE_PARAMS call;
    };
} graph_work_t;

struct CUgraphNode_st {
    handle_head_t head;
    CUgraphNode next;
    int type;
    CUgraph child;
    graph_block_t block; /* of an allocation, or its pointer of a free */
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
    CUgraphExec exec; /* that has its memory, for which there can be one only */
    CUstream origin;  /* whose capture it is, or was */
    uint64_t capture_id;
};

struct CUgraphExec_st {
    handle_head_t head;
    CUgraph graph; /* whose memory it has; NULL: it has none, or the graph is gone */
    uint64_t shape;
    uint64_t duration_ns;
    graph_memory_t memory;
    unsigned long long flags;
    graph_work_t *works;
    size_t work_count;
};

CUgraphNode graph_add(CUgraph graph, int type);
CUresult graph_add_work(CUgraphNode *node, CUgraph graph, const graph_work_t *work);

/* cuda_graph_work.c: how many works there are in a graph and its children, and all of them in their order. */
size_t graph_work_count(CUgraph graph);
void graph_work_list(CUgraph graph, graph_work_t **at);
/* What comes before the kernels of a launch, and what after them. */
CUresult graph_work_begin(CUgraphExec exec, CUstream stream);
CUresult graph_work_end(CUgraphExec exec, CUstream stream);

#endif
