#ifndef SIMGPU_CUDA_COPY_BATCH_H
#define SIMGPU_CUDA_COPY_BATCH_H

#include <stdbool.h>

#include "cuda/abi/abi.h"

/* Check the list of a batch's copies at which each set of attributes begins, and a stream for a batch. */
bool batch_indexed(const size_t *first, size_t sets, size_t count);
CUresult batch_stream(CUstream stream);

#endif
