/* Work besides kernels, as values: a stream does it now, a graph later. */
#ifndef SIMGPU_CUDA_GRAPH_WORK_H
#define SIMGPU_CUDA_GRAPH_WORK_H

#include "cuda/abi/abi.h"

typedef enum { WORK_COPY, WORK_FILL, WORK_HOST, WORKS } work_t;

/* Rows and slices of bytes; pitches and slices are how far it is to the next. */
typedef struct {
    CUdeviceptr to, from;
    size_t width, height, depth;
    size_t to_pitch, from_pitch, to_slice, from_slice;
} copy_t;

/* Rows of elements of 1, 2 or 4 bytes. */
typedef struct {
    CUdeviceptr to;
    size_t pitch;
    unsigned value;
    unsigned element; /* bytes */
    size_t width;     /* elements */
    size_t height;
} fill_t;

/* What a node does besides kernels and memory, when the graph is launched. */
typedef struct {
    work_t kind;
    union {
        copy_t copy;
        fill_t fill;
        CUDA_HOST_NODE_PARAMS call;
    };
} graph_work_t;

#endif
