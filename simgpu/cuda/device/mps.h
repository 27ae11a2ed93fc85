#ifndef SIMGPU_CUDA_MPS_H
#define SIMGPU_CUDA_MPS_H

#include "cuda/abi/abi.h"
#include "image/gpus.h"

/* cuda_mps.c: whether the GPU's compute mode lets this process in, be it as a client of MPS. */
bool mps_allows(const gpu_t *gpu);
bool mps_is_client(void);
/* What MPS lets this process hold on a device; 0: no limit. */
uint64_t mps_limit_bytes(CUdevice device);
/* How much of a device MPS lets its kernels have at once. */
unsigned mps_percent(void);

#endif
