/* MIG: a GPU cut into GPU instances, and those into compute instances. What is made stays, whoever made it and however
 * that process ended, until it is destroyed or the GPU is reset.
 *
 * Changes need a GPU that was opened for writing. */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "image/gpus.h"
#include "image/mig_layout.h"

#define MIG_ANY UINT32_MAX /* as a start: where there is room */

typedef enum { MIG_OK, MIG_INVALID, MIG_NOT_ENABLED, MIG_IN_USE, MIG_NO_ROOM, MIG_NOT_FOUND } mig_result_t;

/* MIG_IN_USE: noted, to take effect with the next reset. */
mig_result_t mig_set_mode(gpu_t *gpu, bool enabled);
/* What a reset does; MIG_IN_USE: a process has the GPU, and nothing was done. */
mig_result_t mig_reset(gpu_t *gpu);
/* How many more of that kind could be made now, and where (bit i: at place i). */
uint32_t mig_room(const image_t *image, const mig_profile_t *profile, uint32_t *starts_p);
mig_result_t mig_create(gpu_t *gpu, const mig_profile_t *profile, uint32_t start, uint32_t *id_p);
mig_result_t mig_destroy(gpu_t *gpu, uint32_t id);

bool mig_compute_possible(const mig_profile_t *profile, uint32_t slices);
uint32_t mig_compute_room(const image_t *image, const image_instance_t *instance, uint32_t slices);
mig_result_t mig_create_compute(gpu_t *gpu, uint32_t instance_id, uint32_t slices, uint32_t *id_p);
mig_result_t mig_destroy_compute(gpu_t *gpu, uint32_t instance_id, uint32_t id);

#endif
