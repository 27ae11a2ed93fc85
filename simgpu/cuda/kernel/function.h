#ifndef SIMGPU_CUDA_FUNCTION_H
#define SIMGPU_CUDA_FUNCTION_H

#include "cuda/abi/abi.h"

/* Attributes of a kernel on a device. */
CUresult function_attribute(int *value, int attribute, CUfunction function, CUdevice device);
CUresult function_set_attribute(CUfunction function, int attribute, int value);

#endif
