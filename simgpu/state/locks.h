/* The locks on a GPU's file, and which process holds which slot.
 *
 * They are POSIX record locks on bytes beyond the end of the file. The kernel drops them when a process dies for any
 * reason, so a killed process leaves nothing locked. F_GETLK returns the pid of a slot's holder in the calling
 * process's own pid namespace. */
#ifndef SIMGPU_LOCKS_H
#define SIMGPU_LOCKS_H

#include <sys/types.h>

#include "image/gpus.h"

/* Lock the state that all processes share, for a change. */
void gpu_lock_changes(gpu_t *gpu);
void gpu_unlock_changes(gpu_t *gpu);

/* Lock the queues of kernels, for a change. */
void gpu_lock_queues(gpu_t *gpu);
void gpu_unlock_queues(gpu_t *gpu);

/* Lock the byte of a slot for this process. False: another process holds it. */
bool slot_lock(const gpu_t *gpu, unsigned index);
/* Whether a living process holds the slot. `holder_p`: its pid; 0 if its pid namespace is not visible from here. */
bool slot_is_held(const gpu_t *gpu, unsigned index, pid_t *holder_p);
/* Whether the process with this pid and start time still holds the slot. */
bool slot_is_alive(const gpu_t *gpu, unsigned index, uint64_t pid, uint64_t start_ticks);
/* Lock the byte of an MPS server's entry for this process, its control daemon. False: another process holds it. */
bool server_lock(const gpu_t *gpu, unsigned entry);
void server_unlock(const gpu_t *gpu, unsigned entry);
/* Whether another process, which is alive, holds the entry. */
bool server_is_held(const gpu_t *gpu, unsigned entry);
/* When this process started, in clock ticks since boot; 0 without /proc. */
uint64_t own_start_ticks(void);

#endif
