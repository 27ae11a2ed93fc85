#ifndef SIMGPU_CUDA_LAUNCH_H
#define SIMGPU_CUDA_LAUNCH_H

#include <stdbool.h>

#include "cuda/kernel/module.h"

/* cuda_launch.c: into the stream, or into the graph that it is being captured to. */
CUresult launch_submit(CUcontext context, CUstream stream, bool per_thread, const kernel_t *kernel);

#endif
