#ifndef SIMGPU_CUDA_CAPTURE_H
#define SIMGPU_CUDA_CAPTURE_H

#include "cuda/abi/abi.h"

/* cuda_capture.c: the stream goes, and with it what was captured of it. */
void capture_abandon(CUstream stream);
/* A stream that waits for an event of a capture belongs to the capture from then on. */
CUresult capture_join(CUgraph graph, CUstream stream);

#endif
