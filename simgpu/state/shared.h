/* Memory that other processes can map: a memfd with its GPU's UUID in the name.
 *
 * The memory counts for the process that created it. Exported memory with a handle exists as long as any process has
 * a descriptor or a mapping of it, or a descriptor is in transit through a socket. All of these are one open file,
 * with a lock that the kernel drops with the last of them and that /proc/locks shows to all processes. */
#ifndef SIMGPU_SHARED_H
#define SIMGPU_SHARED_H

#include "image/gpus.h"

/* Return a descriptor, or -1. */
int shared_make(const gpu_t *gpu, size_t bytes);
int shared_copy(int memory);

/* Make room for `bytes` at the offset. Returns the next free offset. */
uint64_t shared_extend(int memory, uint64_t offset, size_t bytes);

/* Free the pages of memory that is no longer needed. */
void shared_discard(int memory, uint64_t offset, size_t bytes);

/* Lock the memory, so that other processes can find out by its inode whether any process still has it. */
bool shared_lock(int memory);
uint64_t shared_inode(int memory);
bool shared_is_open(uint64_t number);

/* Whether the memory is on that GPU. */
bool shared_is_on(int memory, const gpu_t *gpu);

#endif
