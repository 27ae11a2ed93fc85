#ifndef SIMGPU_CUDA_LAUNCH_H
#define SIMGPU_CUDA_LAUNCH_H

#include <stdbool.h>

#include "cuda/kernel/module.h"

/* Launch a kernel into the stream, or into the graph that it is captured into. */
CUresult launch_submit(CUcontext context, CUstream stream, bool per_thread, const kernel_t *kernel);

#endif
