#ifndef SIMGPU_CUDA_ARRAY_H
#define SIMGPU_CUDA_ARRAY_H

#include "cuda/abi/abi.h"

void array_free_context(CUcontext context);

#endif
