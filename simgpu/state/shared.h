/* Memory that other processes can map: a memfd that has the name of its GPU, for those who are given it.
 *
 * Whoever made it holds it of the GPU. A piece by a handle that was exported is there for as long as anybody has a
 * descriptor or a mapping of it, also one that is on its way through a socket: all of them are one open file, which has
 * a lock that the kernel drops with the last of them, and that /proc/locks shows to everyone. */
#ifndef SIMGPU_SHARED_H
#define SIMGPU_SHARED_H

#include "image/gpus.h"

/* A descriptor, or -1. */
int shared_make(const gpu_t *gpu, size_t bytes);
int shared_copy(int memory);

/* Room for so many bytes at the offset, which is where the next ones go. */
uint64_t shared_extend(int memory, uint64_t offset, size_t bytes);

/* Gives back the pages of what nobody needs any more. */
void shared_discard(int memory, uint64_t offset, size_t bytes);

/* From now on others can tell by `shared_inode` whether anybody has it. */
bool shared_watch(int memory);
uint64_t shared_inode(int memory);
bool shared_is_open(uint64_t number);

/* Whether the memory is on that GPU. */
bool shared_is_on(int memory, const gpu_t *gpu);

#endif
