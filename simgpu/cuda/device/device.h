/* The devices of this process, between cuInit and its end. */
#ifndef SIMGPU_CUDA_DEVICE_H
#define SIMGPU_CUDA_DEVICE_H

#include "cuda/abi/abi.h"
#include "image/gpus.h"

/* cuda_device.c: SUCCESS after cuInit, in the process that called it. */
CUresult driver_ready(void);
/* Of CUDA, as the node's description has it; 0: there is no GPU that could tell. */
int driver_version(void);
CUresult driver_gpu(CUdevice device, gpu_t **gpu_p);
/* Its number for CUDA; -1: it has none. */
CUdevice driver_device(const gpu_t *gpu);

/* The GPU that shared memory is on; NULL: none of this process. */
gpu_t *driver_gpu_of(int memory);

#endif
