/* Memory that other processes can map: a memfd that has the name of its GPU, for those who are given it.
 *
 * Whoever made it holds it of the GPU, and nobody else: that the memory outlives its maker is not simulated. */
#ifndef SIMGPU_SHARED_H
#define SIMGPU_SHARED_H

#include "gpus.h"

/* A descriptor, or -1. */
int shared_make(const gpu_t *gpu, size_t bytes);
int shared_copy(int memory);

/* Room for so many bytes at the offset, which is where the next ones go. */
uint64_t shared_extend(int memory, uint64_t offset, size_t bytes);

/* Gives back the pages of what nobody needs any more. */
void shared_discard(int memory, uint64_t offset, size_t bytes);

/* Whether the memory is on that GPU. */
bool shared_is_on(int memory, const gpu_t *gpu);

#endif
