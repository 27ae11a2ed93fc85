#ifndef SIMGPU_CUDA_PLACE_H
#define SIMGPU_CUDA_PLACE_H

#include "cuda/abi/abi.h"
#include "image/gpus.h"

/* The memory that an address known to the driver belongs to. */
typedef struct {
    CUdeviceptr start;
    size_t bytes;
    gpu_t *gpu;        /* NULL: host memory */
    CUcontext context; /* NULL: none */
    CUmemoryPool pool;
    bool on_host;
    bool managed;
    bool legacy_ipc; /* cuIpcGetMemHandle can export it */
    uint64_t id;
} memory_place_t;

#endif
