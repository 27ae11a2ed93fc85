/* Memory limits of control groups on a GPU, as drivers from version 615 on enforce them.
 *
 * A hard limit is the maximum for the processes of the group together. A soft limit is reserved for them: other
 * processes cannot use what the group has not used yet. A process counts for its group and for all groups above. A hard
 * limit ends with its group; a soft limit stays. */
#ifndef SIMGPU_LIMITS_H
#define SIMGPU_LIMITS_H

#include "image/gpus.h"

#define LIMITS_NONE UINT64_MAX /* as a hard limit */

/* False: the table of limits is full. */
bool limits_set(gpu_t *gpu, const char *path, uint64_t cgroup, uint64_t soft_bytes, uint64_t hard_bytes);
/* False: this group never had a limit. */
bool limits_get(const gpu_t *gpu, uint64_t cgroup, uint64_t *soft_bytes_p, uint64_t *hard_bytes_p);

/* Whether the process in `slot` may allocate `bytes` more if `left_bytes` are free on the GPU. Call it between
 * gpu_lock_changes and gpu_unlock_changes. */
bool limits_allow(const gpu_t *gpu, const image_slot_t *slot, uint64_t bytes, uint64_t left_bytes);

/* Whether a slot's process was in the control group, or in one below it, when it took the slot. */
bool slot_is_in_cgroup(const image_slot_t *slot, uint64_t cgroup);

#endif
