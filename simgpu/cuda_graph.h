/* What graphs and executable graphs are made of. */
#ifndef SIMGPU_CUDA_GRAPH_H
#define SIMGPU_CUDA_GRAPH_H

#include "cuda_driver.h"

struct CUgraphNode_st {
    CUgraphNode next;
    int type;
    CUgraph child;
    graph_block_t block; /* of an allocation, or its pointer of a free */
};

struct CUgraph_st {
    CUcontext context;
    _Atomic uint64_t duration_ns;
    CUgraphNode nodes, *last;
    size_t count;
    graph_memory_t memory;
    CUgraphExec exec; /* that has its memory, for which there can be one only */
};

struct CUgraphExec_st {
    CUgraph graph; /* whose memory it has; NULL: it has none, or the graph is gone */
    uint64_t shape;
    uint64_t duration_ns;
    graph_memory_t memory;
};

#endif
