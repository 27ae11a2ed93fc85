#include "state/mig.h"

#include <stdio.h>
#include <string.h>

#include "state/locks.h"
#include "state/slots.h"

static image_instance_t *find(image_t *image, uint32_t id) {
    return (image_instance_t *)mig_instance(image, id);
}

static bool has_instances(const image_t *image) {
    for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
        if (image->instances[i].present)
            return true;
    }
    return false;
}

mig_result_t mig_set_mode(gpu_t *gpu, bool enabled) {
    image_t *image = gpu->image;
    gpu_lock_changes(gpu);
    image->mig_pending = enabled;
    bool busy = image->mig_mode != enabled && (slots_in_use(gpu, 0, 0) || has_instances(image));
    if (!busy)
        image->mig_mode = enabled;
    gpu_unlock_changes(gpu);
    return busy ? MIG_IN_USE : MIG_OK;
}

mig_result_t mig_reset(gpu_t *gpu) {
    image_t *image = gpu->image;
    gpu_lock_changes(gpu);
    bool busy = slots_in_use(gpu, 0, 0);
    if (!busy) {
        memset(image->instances, 0, sizeof image->instances);
        image->mig_mode = image->mig_pending;
    }
    gpu_unlock_changes(gpu);
    return busy ? MIG_IN_USE : MIG_OK;
}

static uint32_t places(uint32_t start, uint32_t size) {
    return ((1u << size) - 1) << start;
}

uint32_t mig_room(const image_t *image, const mig_profile_t *profile, uint32_t *starts_p) {
    uint32_t taken = 0, slices = 0, alike = 0;
    *starts_p = 0;
    for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
        const image_instance_t *instance = &image->instances[i];
        if (!instance->present)
            continue;
        const mig_profile_t *its = mig_profile(image, instance->profile);
        taken |= places(instance->start, its->size);
        slices += its->slices;
        alike += its == profile;
    }
    uint32_t left = (mig_gpu_slices(image) - slices) / profile->slices;
    if (profile->max_count - alike < left)
        left = profile->max_count - alike;
    uint32_t count = 0, reserved = 0;
    for (uint32_t start = 0; left > 0 && start < image->mig_slices; start++) {
        uint32_t wanted = places(start, profile->size);
        if ((profile->starts >> start & 1) == 0 || (taken & wanted) != 0)
            continue;
        *starts_p |= 1u << start;
        if ((reserved & wanted) == 0 && count < left) {
            reserved |= wanted;
            count++;
        }
    }
    return count;
}

/* Ids as NVIDIA's driver assigns them: 0 is the whole GPU, the others count from 1 by size. */
static uint32_t free_id(image_t *image, const mig_profile_t *profile) {
    uint32_t id = profile->size == image->mig_slices ? 0 : 1;
    while (find(image, id) != NULL)
        id++;
    return id;
}

static mig_result_t create(gpu_t *gpu, const mig_profile_t *profile, uint32_t start, uint32_t *id_p) {
    image_t *image = gpu->image;
    uint32_t starts;
    if (!image->mig_mode)
        return MIG_NOT_ENABLED;
    if (start != MIG_ANY && (start >= image->mig_slices || (profile->starts >> start & 1) == 0))
        return MIG_INVALID;
    if (mig_room(image, profile, &starts) == 0 || (start != MIG_ANY && (starts >> start & 1) == 0))
        return MIG_NO_ROOM;
    if (start == MIG_ANY)
        start = (uint32_t)__builtin_ctz(starts);
    for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
        image_instance_t *instance = &image->instances[i];
        if (instance->present)
            continue;
        memset(instance, 0, sizeof *instance);
        instance->id = free_id(image, profile);
        instance->profile = profile->profile;
        instance->start = start;
        instance->memory_bytes = mig_profile_mib(image, profile) << 20;
        *id_p = instance->id;
        instance->present = 1;
        return MIG_OK;
    }
    return MIG_NO_ROOM;
}

mig_result_t mig_create(gpu_t *gpu, const mig_profile_t *profile, uint32_t start, uint32_t *id_p) {
    gpu_lock_changes(gpu);
    mig_result_t result = create(gpu, profile, start, id_p);
    gpu_unlock_changes(gpu);
    return result;
}

mig_result_t mig_destroy(gpu_t *gpu, uint32_t id) {
    mig_result_t result = MIG_NOT_FOUND;
    gpu_lock_changes(gpu);
    image_instance_t *instance = find(gpu->image, id);
    if (instance != NULL) {
        result = slots_in_use(gpu, id + 1, 0) ? MIG_IN_USE : MIG_OK;
        for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
            if (instance->compute_instances[i].present)
                result = MIG_IN_USE;
        }
        if (result == MIG_OK)
            instance->present = 0;
    }
    gpu_unlock_changes(gpu);
    return result;
}

bool mig_compute_possible(const mig_profile_t *profile, uint32_t slices) {
    static const uint32_t sizes[] = {1, 2, 3, 4, 7};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] == slices)
            return slices <= profile->slices && (slices == profile->slices || slices * 2 <= profile->slices + 1);
    }
    return false;
}

/* The slices that the compute instances of a GPU instance use, as bits. */
static uint32_t compute_slices(const image_instance_t *instance) {
    uint32_t taken = 0;
    for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
        if (instance->compute_instances[i].present)
            taken |= places(instance->compute_instances[i].start, instance->compute_instances[i].slices);
    }
    return taken;
}

uint32_t mig_compute_room(const image_t *image, const image_instance_t *instance, uint32_t slices) {
    const mig_profile_t *profile = mig_profile(image, instance->profile);
    uint32_t taken = compute_slices(instance), count = 0;
    for (uint32_t start = 0; start + slices <= profile->slices; start++) {
        if ((taken & places(start, slices)) == 0) {
            taken |= places(start, slices);
            count++;
        }
    }
    return count;
}

/* FNV-1a, twice: the same instance of the same GPU always has the same UUID, as on a real one. */
static void derive_uuid(const image_t *image, uint32_t instance_id, image_compute_instance_t *compute) {
    for (unsigned half = 0; half < 2; half++) {
        uint64_t hash = 0xcbf29ce484222325ull ^ half;
        const uint32_t ids[] = {instance_id, compute->id};
        for (unsigned i = 0; i < sizeof image->uuid_bytes; i++)
            hash = (hash ^ image->uuid_bytes[i]) * 0x100000001b3ull;
        for (unsigned i = 0; i < 2; i++)
            hash = (hash ^ (ids[i] + 1)) * 0x100000001b3ull;
        hash ^= hash >> 32;
        hash *= 0x9e3779b97f4a7c15ull;
        memcpy(compute->uuid_bytes + 8 * half, &hash, sizeof hash);
    }
    uint8_t *b = compute->uuid_bytes;
    b[6] = (b[6] & 0x0f) | 0x50;
    b[8] = (b[8] & 0x3f) | 0x80;
    (void)snprintf(compute->uuid, sizeof compute->uuid,
                   "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
                   b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static mig_result_t create_compute(image_t *image, image_instance_t *instance, uint32_t slices, uint32_t *id_p) {
    const mig_profile_t *profile = mig_profile(image, instance->profile);
    if (!mig_compute_possible(profile, slices))
        return MIG_INVALID;
    uint32_t taken = compute_slices(instance), start = 0, id = 0;
    while ((taken & places(start, slices)) != 0)
        start++;
    if (start + slices > profile->slices)
        return MIG_NO_ROOM;
    while (mig_compute_instance(instance, id) != NULL)
        id++;
    for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
        image_compute_instance_t *compute = &instance->compute_instances[i];
        if (compute->present)
            continue;
        *compute = (image_compute_instance_t){.id = id, .slices = slices, .start = start};
        derive_uuid(image, instance->id, compute);
        compute->present = 1;
        *id_p = id;
        return MIG_OK;
    }
    return MIG_NO_ROOM;
}

mig_result_t mig_create_compute(gpu_t *gpu, uint32_t instance_id, uint32_t slices, uint32_t *id_p) {
    gpu_lock_changes(gpu);
    image_instance_t *instance = find(gpu->image, instance_id);
    mig_result_t result = instance == NULL ? MIG_NOT_FOUND : create_compute(gpu->image, instance, slices, id_p);
    gpu_unlock_changes(gpu);
    return result;
}

mig_result_t mig_destroy_compute(gpu_t *gpu, uint32_t instance_id, uint32_t id) {
    mig_result_t result = MIG_NOT_FOUND;
    gpu_lock_changes(gpu);
    image_instance_t *instance = find(gpu->image, instance_id);
    image_compute_instance_t *compute =
        instance != NULL ? (image_compute_instance_t *)mig_compute_instance(instance, id) : NULL;
    if (compute != NULL) {
        result = slots_in_use(gpu, instance_id + 1, id + 1) ? MIG_IN_USE : MIG_OK;
        if (result == MIG_OK)
            compute->present = 0;
    }
    gpu_unlock_changes(gpu);
    return result;
}
