/* Where a description says that the GPU gives out memory in blocks, as real drivers do: large allocations take whole
 * ones, small ones of a process share them. Without that, memory is granted to the byte. */
#ifndef SIMGPU_CUDA_BLOCK_H
#define SIMGPU_CUDA_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "gpus.h"

typedef struct block block_t;

/* `shared`: the block that a small allocation is in, or NULL. False: there is not that much left. */
bool block_charge(gpu_t *gpu, uint64_t bytes, block_t **shared);
void block_refund(gpu_t *gpu, uint64_t bytes, block_t *shared);

#endif
