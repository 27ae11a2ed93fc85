#ifndef SIMGPU_CUDA_COPY_BATCH_H
#define SIMGPU_CUDA_COPY_BATCH_H

#include <stdbool.h>

#include "cuda/abi/abi.h"

/* cuda_copy_batch.c: which of a batch each set of attributes begins at; and a stream that takes batches. */
bool batch_indexed(const size_t *first, size_t sets, size_t count);
CUresult batch_stream(CUstream stream);

#endif
