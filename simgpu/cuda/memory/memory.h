#ifndef SIMGPU_CUDA_MEMORY_H
#define SIMGPU_CUDA_MEMORY_H

#include "cuda/memory/pool.h"

CUresult memory_free(CUdeviceptr pointer, const free_point_t *point);
void memory_free_context(CUcontext context);

#endif
