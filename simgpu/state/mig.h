/* Changes of a GPU's MIG mode and instances. Instances exist until they are destroyed or the GPU is reset, even
 * after the process that created them has ended.
 *
 * Changes need a GPU that was opened for writing. */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "image/gpus.h"
#include "image/mig_layout.h"

#define MIG_ANY UINT32_MAX /* as a start: any free placement */

typedef enum { MIG_OK, MIG_INVALID, MIG_NOT_ENABLED, MIG_IN_USE, MIG_NO_ROOM, MIG_NOT_FOUND } mig_result_t;

/* MIG_IN_USE: the change takes effect at the next reset. */
mig_result_t mig_set_mode(gpu_t *gpu, bool enabled);
/* Reset the GPU: remove all instances and apply the pending mode. MIG_IN_USE: a process uses the GPU; nothing was
 * done. */
mig_result_t mig_reset(gpu_t *gpu);
/* Count how many more instances of the profile fit now, and where (bit i: at placement i). */
uint32_t mig_room(const image_t *image, const mig_profile_t *profile, uint32_t *starts_p);
mig_result_t mig_create(gpu_t *gpu, const mig_profile_t *profile, uint32_t start, uint32_t *id_p);
mig_result_t mig_destroy(gpu_t *gpu, uint32_t id);

bool mig_compute_possible(const mig_profile_t *profile, uint32_t slices);
uint32_t mig_compute_room(const image_t *image, const image_instance_t *instance, uint32_t slices);
mig_result_t mig_create_compute(gpu_t *gpu, uint32_t instance_id, uint32_t slices, uint32_t *id_p);
mig_result_t mig_destroy_compute(gpu_t *gpu, uint32_t instance_id, uint32_t id);

#endif
