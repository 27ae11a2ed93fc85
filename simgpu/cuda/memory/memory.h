#ifndef SIMGPU_CUDA_MEMORY_H
#define SIMGPU_CUDA_MEMORY_H

#include "cuda/memory/pool.h"

/* Free an allocation, or memory that a graph left unfreed. */
CUresult memory_free(CUdeviceptr pointer, const free_point_t *point);
/* Free the allocations of a context that ends. */
void memory_free_context(CUcontext context);

#endif
