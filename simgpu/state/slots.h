/* The processes that use a GPU, and how much of its memory each of them has.
 *
 * A process takes a slot with a POSIX record lock on that slot's byte. The kernel drops the lock when the process
 * dies for any reason, so its memory is free at that moment, as with a real driver, without any cleanup. F_GETLK
 * returns the holder's pid in the calling process's own pid namespace, which is what NVML reports on a real host:
 * the host's agent sees all processes, a container only its own.
 *
 * Changes are made under one more such lock. Reading needs no lock. */
#ifndef SIMGPU_SLOTS_H
#define SIMGPU_SLOTS_H

#include <stdbool.h>
#include <stddef.h>

#include "image/gpus.h"

typedef struct {
    uint32_t pid; /* 0: in a pid namespace that the calling process cannot see */
    uint64_t memory_bytes;
    uint32_t instance, compute_instance; /* as in gpu_t */
    uint32_t slot;
    unsigned mps, partition; /* of an MPS client, as in gpu_t */
} slot_holder_t;

/* Take a slot, unless this process has one on this GPU. False: all IMAGE_SLOTS are taken. */
bool slots_join(gpu_t *gpu);

/* Allocate memory. False: not enough is left, and nothing was allocated. */
bool slots_charge(gpu_t *gpu, uint64_t bytes);
void slots_refund(gpu_t *gpu, uint64_t bytes);

/* Refund exported memory. While another process has it, it stays allocated but counts for no process. The real
 * driver then counts it for one of the processes that imported it, if there are any. */
void slots_abandon(gpu_t *gpu, uint64_t bytes, uint64_t memory);

/* Free the slots of dead processes now, instead of when memory runs short. */
void slots_sweep(gpu_t *gpu);

/* Whether a living process uses the instance. compute_instance 0: any in the GPU instance; instance 0: any on the
 * GPU. Call it between gpu_lock_changes and gpu_unlock_changes. */
bool slots_in_use(const gpu_t *gpu, uint32_t instance, uint32_t compute_instance);

/* Bytes of living processes and of abandoned memory; for a MIG device, those in its GPU instance. */
uint64_t slots_used_bytes(const gpu_t *gpu);

/* The same for the processes in one control group. */
uint64_t slots_used_bytes_in(const gpu_t *gpu, uint64_t cgroup);

/* List the living holders. Returns how many there are, and writes at most `capacity` of them. */
size_t slots_holders(const gpu_t *gpu, slot_holder_t *holders, size_t capacity);

/* Return the memory that the calling process sees: that of its lowest hard limit, or of the GPU or MIG device. */
void slots_memory_info(const gpu_t *gpu, uint64_t *total_bytes_p, uint64_t *used_bytes_p);

#endif
