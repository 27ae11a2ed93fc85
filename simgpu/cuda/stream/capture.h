#ifndef SIMGPU_CUDA_CAPTURE_H
#define SIMGPU_CUDA_CAPTURE_H

#include "cuda/abi/abi.h"

/* End the part of a stream that is destroyed in its capture. */
void capture_abandon(CUstream stream);
/* Let a stream join a capture because it waits for an event of it. */
CUresult capture_join(CUgraph graph, CUstream stream);

#endif
