#ifndef SIMGPU_CUDA_POINTER_H
#define SIMGPU_CUDA_POINTER_H

#include "cuda/memory/place.h"

bool pointer_find(CUdeviceptr address, memory_place_t *place);
/* Whether the driver knows all memory in the range, in one or several allocations. */
bool pointer_range(CUdeviceptr start, size_t bytes);

#endif
