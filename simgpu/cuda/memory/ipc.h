#ifndef SIMGPU_CUDA_IPC_H
#define SIMGPU_CUDA_IPC_H

#include "cuda/memory/place.h"

bool ipc_find(CUdeviceptr address, memory_place_t *place);

#endif
