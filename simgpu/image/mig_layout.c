/* The profiles of GPU models, as `nvidia-smi mig -lgip` and `-lgipp` list them on an A100 and an A30. */
#include "image/mig_layout.h"

#include <stdio.h>

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define MIB (1ull << 20)
#define GIB (1ull << 30)

/* The numbers in NVML's header: slices, and _REV1 (media), _REV2 (double memory). */
static const mig_profile_t of_eight[] = {
    {0, 19, 1, 1, 7, "", 0x7f}, {1, 14, 2, 2, 3, "", 0x15},    {2, 9, 3, 4, 2, "", 0x11},  {3, 5, 4, 4, 1, "", 0x01},
    {4, 0, 7, 8, 1, "", 0x01},  {7, 20, 1, 1, 1, "+me", 0x7f}, {9, 15, 1, 2, 4, "", 0x55},
};
static const mig_profile_t of_four[] = {
    {0, 14, 1, 1, 4, "", 0x0f},    {1, 5, 2, 2, 2, "", 0x05},    {3, 0, 4, 4, 1, "", 0x01},
    {7, 21, 1, 1, 1, "+me", 0x0f}, {8, 6, 2, 2, 1, "+me", 0x05},
};

static const mig_profile_t *table(const image_t *image, size_t *count_p) {
    *count_p = image->mig_slices == 8 ? COUNT_OF(of_eight) : image->mig_slices == 4 ? COUNT_OF(of_four) : 0;
    return image->mig_slices == 4 ? of_four : of_eight;
}

const mig_profile_t *mig_profile(const image_t *image, uint32_t profile) {
    size_t count;
    const mig_profile_t *profiles = table(image, &count);
    for (size_t i = 0; i < count; i++) {
        if (profiles[i].profile == profile)
            return &profiles[i];
    }
    return NULL;
}

const mig_profile_t *mig_profile_of_id(const image_t *image, uint32_t id) {
    size_t count;
    const mig_profile_t *profiles = table(image, &count);
    for (size_t i = 0; i < count; i++) {
        if (profiles[i].id == id)
            return &profiles[i];
    }
    return NULL;
}

/* The driver reserves a part of each instance's memory. */
uint64_t mig_profile_mib(const image_t *image, const mig_profile_t *profile) {
    uint64_t kept_mib = profile->size == 1 ? 256 : profile->size == 2 ? 384 : profile->size == 4 ? 512 : 768;
    return image->memory_bytes / MIB * profile->size / image->mig_slices - kept_mib;
}

uint32_t mig_slice_multiprocessors(const image_t *image) {
    uint32_t even = (image->multiprocessors / (image->mig_slices == 0 ? 8 : image->mig_slices) + 1) / 2 * 2;
    return even > 0 ? even : 1;
}

uint32_t mig_gpu_slices(const image_t *image) {
    return image->mig_slices == 8 ? 7 : image->mig_slices;
}

/* The memory in the name: whole eighths of the GPU, rounded up, then in GiB, halves rounded up. */
void mig_name(const image_t *image, const mig_profile_t *profile, uint32_t slices, char *name, size_t size) {
    uint64_t bytes = mig_profile_mib(image, profile) * MIB;
    uint64_t eighths = (8 * bytes + image->memory_bytes - 1) / image->memory_bytes;
    uint64_t total_gib = (image->memory_bytes + GIB - 1) / GIB;
    unsigned gib = (unsigned)((eighths * total_gib * 2 + 8) / 16);
    if (slices == profile->slices)
        (void)snprintf(name, size, "%ug.%ugb%s", profile->slices, gib, profile->attribute);
    else
        (void)snprintf(name, size, "%uc.%ug.%ugb%s", slices, profile->slices, gib, profile->attribute);
}

const image_instance_t *mig_instance(const image_t *image, uint32_t id) {
    for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
        if (image->instances[i].present && image->instances[i].id == id)
            return &image->instances[i];
    }
    return NULL;
}

const image_compute_instance_t *mig_compute_instance(const image_instance_t *instance, uint32_t id) {
    for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
        if (instance->compute_instances[i].present && instance->compute_instances[i].id == id)
            return &instance->compute_instances[i];
    }
    return NULL;
}

const char *mig_mode_text(const image_t *image) {
    if (image->mig_slices == 0)
        return "no";
    return image->mig_mode != image->mig_pending ? "pending reset" : image->mig_mode ? "on" : "capable";
}
