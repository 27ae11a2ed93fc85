/* Which processes use a GPU, and how much of its memory each holds.
 *
 * A process takes a slot by a POSIX record lock on that slot's byte. The kernel drops the lock when the process dies in
 * whatever way, so its memory is free again at that moment, as with a real driver, and nobody has to be told. F_GETLK
 * gives the holder's pid in the asking process's own pid namespace, which is what NVML reports on a real host: the
 * host's agent sees everyone, a container sees only itself.
 *
 * Changes are made under one more such lock, so that no killed process can leave it locked. Reading needs none. */
#ifndef SIMGPU_SLOTS_H
#define SIMGPU_SLOTS_H

#include <stdbool.h>
#include <stddef.h>

#include "image/gpus.h"

typedef struct {
    uint32_t pid; /* 0: in a pid namespace that the asking process cannot see */
    uint64_t memory_bytes;
    uint32_t instance, compute_instance; /* as in gpu_t */
    uint32_t slot;
    bool mps; /* a client of MPS */
} slot_holder_t;

/* Take a slot, if this process has none on this GPU yet. False: all IMAGE_SLOTS are held. */
bool slots_join(gpu_t *gpu);

/* Grant memory. False: there is not that much left; nothing was granted. */
bool slots_charge(gpu_t *gpu, uint64_t bytes);
void slots_refund(gpu_t *gpu, uint64_t bytes);

/* As a refund of what was shared: what anybody has yet is nobody's and still taken, until the last one lets it go. The
 * real driver says then that it is of one of those who imported it, if any process did; this one of no process. */
void slots_abandon(gpu_t *gpu, uint64_t bytes, uint64_t memory);

/* Forget what dead processes held, now rather than when memory runs short. */
void slots_sweep(gpu_t *gpu);

/* Whether a living process uses that instance; part 0: any in the GPU instance; instance 0: any on the GPU. Between
 * gpu_lock_changes and gpu_unlock_changes. */
bool slots_in_use(const gpu_t *gpu, uint32_t instance, uint32_t compute_instance);

/* Bytes held by living processes and abandoned ones, of a MIG device those in its GPU instance. */
uint64_t slots_used_bytes(const gpu_t *gpu);

/* The same of the processes in one control group. */
uint64_t slots_used_bytes_in(const gpu_t *gpu, uint64_t cgroup);

/* The living holders; returns how many there are, and writes at most `capacity` of them. */
size_t slots_holders(const gpu_t *gpu, slot_holder_t *holders, size_t capacity);

/* What the calling process sees: the memory of its narrowest hard limit, or that of the GPU or MIG device. */
void slots_memory_info(const gpu_t *gpu, uint64_t *total_bytes_p, uint64_t *used_bytes_p);

#endif
