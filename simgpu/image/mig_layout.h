/* The MIG profiles that a GPU supports, and the instances it has now. */
#ifndef SIMGPU_MIG_LAYOUT_H
#define SIMGPU_MIG_LAYOUT_H

#include <stddef.h>

#include "image/image.h"

/* A profile of GPU instances. */
typedef struct {
    uint32_t profile;
    uint32_t id; /* the id that creating an instance takes */
    uint32_t slices;
    uint32_t size; /* memory slices */
    uint32_t max_count;
    const char *attribute;
    uint32_t starts; /* bit i: it may start at placement i */
} mig_profile_t;

/* Return a profile of this GPU's model, by its number in NVML's header or by the id that instances are created with.
 * NULL if there is none. */
const mig_profile_t *mig_profile(const image_t *image, uint32_t profile);
const mig_profile_t *mig_profile_of_id(const image_t *image, uint32_t id);
uint64_t mig_profile_mib(const image_t *image, const mig_profile_t *profile);
uint32_t mig_slice_multiprocessors(const image_t *image);
uint32_t mig_gpu_slices(const image_t *image);

/* Write the profile's name as NVIDIA's tools do, such as `1c.3g.20gb`. `slices`: those of the compute instance. */
void mig_name(const image_t *image, const mig_profile_t *profile, uint32_t slices, char *name, size_t size);

/* NULL if there is no such instance. */
const image_instance_t *mig_instance(const image_t *image, uint32_t id);
const image_compute_instance_t *mig_compute_instance(const image_instance_t *instance, uint32_t id);

/* The state of MIG mode in words, for `simgpu show`. */
const char *mig_mode_text(const image_t *image);

#endif
