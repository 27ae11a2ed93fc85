/* Copies, fills and host functions as values: a stream does them now, a graph stores them for later. */
#ifndef SIMGPU_CUDA_GRAPH_WORK_H
#define SIMGPU_CUDA_GRAPH_WORK_H

#include "cuda/abi/abi.h"

typedef enum { WORK_COPY, WORK_FILL, WORK_HOST, WORKS } work_t;

/* A box of bytes: `pitch` is the distance between rows, `slice` the distance between layers. */
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
    unsigned element; /* size in bytes */
    size_t width;     /* in elements */
    size_t height;
} fill_t;

/* Work in a node other than kernels and memory. */
typedef struct {
    work_t kind;
    union {
        copy_t copy;
        fill_t fill;
        CUDA_HOST_NODE_PARAMS call;
    };
} graph_work_t;

#endif
