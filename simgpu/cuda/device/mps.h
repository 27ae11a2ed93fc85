#ifndef SIMGPU_CUDA_MPS_H
#define SIMGPU_CUDA_MPS_H

#include "cuda/abi/abi.h"
#include "image/gpus.h"

/* Whether the GPU's compute mode allows a context for this process. */
bool mps_allows(const gpu_t *gpu);
bool mps_is_client(void);
/* Return MPS's memory limit for this process on a device; 0: no limit. */
uint64_t mps_limit_bytes(CUdevice device);
/* Return how much of a device MPS lets this process's kernels use at once. */
unsigned mps_percent(void);

#endif
