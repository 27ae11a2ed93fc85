#ifndef SIMGPU_CUDA_HOST_H
#define SIMGPU_CUDA_HOST_H

#include "cuda/memory/place.h"

bool host_find(CUdeviceptr address, memory_place_t *place);

#endif
