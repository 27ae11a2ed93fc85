#ifndef SIMGPU_CUDA_PLACE_H
#define SIMGPU_CUDA_PLACE_H

#include "cuda/abi/abi.h"
#include "image/gpus.h"

/* cuda_pointer.c: what an address that the driver knows is in. */
typedef struct {
    CUdeviceptr start;
    size_t bytes;
    gpu_t *gpu;        /* NULL: of the host */
    CUcontext context; /* NULL: it belongs to none */
    CUmemoryPool pool;
    bool on_host;
    bool managed;
    bool legacy_ipc; /* can be told to others by cuIpcGetMemHandle */
    uint64_t id;
} memory_place_t;

#endif
