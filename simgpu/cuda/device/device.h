/* The devices of this process, from cuInit until the process ends. */
#ifndef SIMGPU_CUDA_DEVICE_H
#define SIMGPU_CUDA_DEVICE_H

#include "cuda/abi/abi.h"
#include "image/gpus.h"

/* CUDA_SUCCESS after cuInit in the process that called it. */
CUresult driver_ready(void);
/* Return the CUDA version in the node's description; 0 if there is no GPU. */
int driver_version(void);
CUresult driver_gpu(CUdevice device, gpu_t **gpu_p);
/* Return the GPU's device number; -1 if it has none. */
CUdevice driver_device(const gpu_t *gpu);

/* Return the GPU that shared memory is on; NULL if it is not a device of this process. */
gpu_t *driver_gpu_of(int memory);

#endif
