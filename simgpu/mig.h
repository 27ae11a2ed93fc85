/* MIG: a GPU cut into GPU instances, and those into compute instances. What is made stays, whoever made it and however
 * that process ended, until it is destroyed or the GPU is reset.
 *
 * Changes need a GPU that was opened for writing. */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "gpus.h"

#define MIG_ANY UINT32_MAX /* as a start: where there is room */

/* A kind of GPU instance, by its number in NVML's header. */
typedef struct {
    uint32_t profile;
    uint32_t id; /* the number that creating takes */
    uint32_t slices;
    uint32_t size; /* places */
    uint32_t most;
    const char *attribute;
    uint32_t starts; /* bit i: it may begin at place i */
} mig_profile_t;

typedef enum { MIG_OK, MIG_INVALID, MIG_NOT_ENABLED, MIG_IN_USE, MIG_NO_ROOM, MIG_NOT_FOUND } mig_result_t;

/* mig_profiles.c: the kinds that this GPU has; ids of creating are told apart from numbers in NVML's header. */
const mig_profile_t *mig_profile(const image_t *image, uint32_t profile);
const mig_profile_t *mig_profile_of_id(const image_t *image, uint32_t id);
uint64_t mig_profile_mib(const image_t *image, const mig_profile_t *profile);
uint32_t mig_slice_multiprocessors(const image_t *image);
uint32_t mig_gpu_slices(const image_t *image);
/* `1c.3g.20gb`, as NVIDIA's tools name it; parts: the slices of the compute instance. */
void mig_name(const image_t *image, const mig_profile_t *profile, uint32_t slices, char *name, size_t size);

const image_instance_t *mig_instance(const image_t *image, uint32_t id);
const image_part_t *mig_part(const image_instance_t *instance, uint32_t id);
const char *mig_word(const image_t *image);

/* Of the GPU or MIG device that `gpu` is. */
bool mig_usable(const gpu_t *gpu);
uint64_t mig_memory_bytes(const gpu_t *gpu);
image_line_t *mig_line(const gpu_t *gpu);

/* MIG_IN_USE: noted, to take effect with the next reset. */
mig_result_t mig_set_mode(gpu_t *gpu, bool enabled);
/* What a reset does; MIG_IN_USE: a process has the GPU, and nothing was done. */
mig_result_t mig_reset(gpu_t *gpu);
/* How many more of that kind could be made now, and where (bit i: at place i). */
uint32_t mig_room(const image_t *image, const mig_profile_t *profile, uint32_t *starts_p);
mig_result_t mig_create(gpu_t *gpu, const mig_profile_t *profile, uint32_t start, uint32_t *id_p);
mig_result_t mig_destroy(gpu_t *gpu, uint32_t id);

bool mig_part_possible(const mig_profile_t *profile, uint32_t slices);
uint32_t mig_part_room(const image_t *image, const image_instance_t *instance, uint32_t slices);
mig_result_t mig_create_part(gpu_t *gpu, uint32_t instance_id, uint32_t slices, uint32_t *id_p);
mig_result_t mig_destroy_part(gpu_t *gpu, uint32_t instance_id, uint32_t id);

#endif
