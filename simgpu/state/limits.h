/* Limits of the memory that the processes of a control group may have of a GPU, as drivers from version 615 on keep
 * them.
 *
 * A hard limit is the most that they get. A soft limit is kept free for them: others do not get what they have not
 * taken of it yet. Whoever is in a group below is in it, too. */
#ifndef SIMGPU_LIMITS_H
#define SIMGPU_LIMITS_H

#include "image/gpus.h"

#define LIMITS_NONE UINT64_MAX /* as a hard limit */

/* False: there is no room for one more. */
bool limits_set(gpu_t *gpu, uint64_t cgroup, uint64_t soft_bytes, uint64_t hard_bytes);
/* False: that group never had any. */
bool limits_get(const gpu_t *gpu, uint64_t cgroup, uint64_t *soft_bytes_p, uint64_t *hard_bytes_p);

/* Whether the process in `slot` may have so much more, where others leave `left_bytes`. Between gpu_lock_changes and
 * gpu_unlock_changes. */
bool limits_allow(const gpu_t *gpu, const image_slot_t *slot, uint64_t bytes, uint64_t left_bytes);

/* Whether a slot's process was in the control group, or in one below it, when it took the slot. */
bool slot_is_in_cgroup(const image_slot_t *slot, uint64_t cgroup);

#endif
