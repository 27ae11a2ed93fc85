/* GPU instances and compute instances: profiles, capacity, listing, creation and destruction. */
#define _GNU_SOURCE
#include <stdio.h>

#include "nvml/mig.h"
#include "nvml/session.h"

/* A handle is the entry for its ids in a table, so handles need no allocation. */
struct nvml_compute_instance {
    struct nvml_gpu_instance *instance;
    unsigned id;
};
struct nvml_gpu_instance {
    nvmlDevice_t device;
    unsigned id;
    struct nvml_compute_instance compute_instances[IMAGE_INSTANCES];
};
static struct nvml_gpu_instance handles[IMAGE_MAX_GPUS][SESSION_IDS];

/* The slices of a compute instance, by the profile's number in NVML's header. */
static const unsigned compute_slices[] = {1, 2, 3, 4, 7};
#define COMPUTE_PROFILES (sizeof compute_slices / sizeof *compute_slices)

static nvmlGpuInstance_t handle_of(nvmlDevice_t device, unsigned id) {
    nvmlGpuInstance_t handle = &handles[device->index][id];
    handle->device = device;
    handle->id = id;
    return handle;
}

static nvmlComputeInstance_t compute_handle_of(nvmlGpuInstance_t instance, unsigned id) {
    instance->compute_instances[id] = (struct nvml_compute_instance){.instance = instance, .id = id};
    return &instance->compute_instances[id];
}

static nvmlReturn_t check_capable(nvmlDevice_t device, const void *output) {
    nvmlReturn_t result = session_check(device, output);
    if (result == NVML_SUCCESS && device->instance != 0)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && device->image->mig_slices == 0)
        result = NVML_ERROR_NOT_SUPPORTED;
    return result;
}

static nvmlReturn_t find_profile(nvmlDevice_t device, unsigned id, const void *output,
                                 const mig_profile_t **profile_p) {
    nvmlReturn_t result = check_capable(device, output);
    if (result != NVML_SUCCESS)
        return result;
    *profile_p = mig_profile_of_id(device->image, id);
    return *profile_p != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t check_profile(nvmlDevice_t device, unsigned id, const void *output,
                                  const mig_profile_t **profile_p) {
    nvmlReturn_t result = find_profile(device, id, output, profile_p);
    return result == NVML_SUCCESS && !device->image->mig_mode ? NVML_ERROR_NOT_SUPPORTED : result;
}

static nvmlReturn_t check_instance(nvmlGpuInstance_t instance, const void *output, const image_instance_t **found_p) {
    if (instance < &handles[0][0] || instance >= &handles[0][0] + sizeof handles / sizeof **handles)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = session_check(instance->device, output);
    if (result != NVML_SUCCESS)
        return result;
    *found_p = mig_instance(instance->device->image, instance->id);
    return *found_p != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned number,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info) {
    nvmlReturn_t result = check_capable(device, info);
    if (result != NVML_SUCCESS)
        return result;
    if (info->version != NVML_GPU_INSTANCE_PROFILE_INFO_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const mig_profile_t *profile = mig_profile(device->image, number);
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    char name[64];
    mig_name(device->image, profile, profile->slices, name, sizeof name);
    *info = (nvmlGpuInstanceProfileInfo_v2_t){
        .version = info->version,
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->max_count,
        .multiprocessorCount = profile->slices * mig_slice_multiprocessors(device->image),
        .copyEngineCount = profile->slices,
        .decoderCount = profile->slices / 2,
        .jpegCount = profile->attribute[0] != '\0',
        .ofaCount = profile->attribute[0] != '\0',
        .memorySizeMB = mig_profile_mib(device->image, profile),
    };
    (void)snprintf(info->name, sizeof info->name, "MIG %s", name);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned number,
                                                 nvmlGpuInstanceProfileInfo_t *info) {
    nvmlGpuInstanceProfileInfo_v2_t wide = {.version = NVML_GPU_INSTANCE_PROFILE_INFO_V2};
    nvmlReturn_t result =
        info == NULL ? NVML_ERROR_INVALID_ARGUMENT : nvmlDeviceGetGpuInstanceProfileInfoV(device, number, &wide);
    if (result == NVML_SUCCESS)
        *info = (nvmlGpuInstanceProfileInfo_t){.id = wide.id,
                                               .sliceCount = wide.sliceCount,
                                               .instanceCount = wide.instanceCount,
                                               .multiprocessorCount = wide.multiprocessorCount,
                                               .copyEngineCount = wide.copyEngineCount,
                                               .decoderCount = wide.decoderCount,
                                               .jpegCount = wide.jpegCount,
                                               .ofaCount = wide.ofaCount,
                                               .memorySizeMB = wide.memorySizeMB};
    return result;
}

/* NVML's protocol for lists: without a buffer, return the count; with one that is too small, an error. */
static nvmlReturn_t list_placements(uint32_t starts, unsigned size, nvmlInstancePlacement_t *placements,
                                    unsigned *count) {
    unsigned found = (unsigned)__builtin_popcount(starts);
    if (placements != NULL && found > *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = found;
    for (unsigned start = 0; placements != NULL && starts >> start != 0; start++) {
        if ((starts >> start & 1) != 0)
            *placements++ = (nvmlInstancePlacement_t){.start = start, .size = size};
    }
    return NVML_SUCCESS;
}

/* NVML lists profiles and placements whether or not the GPU is in MIG mode. */
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
                                                           nvmlInstancePlacement_t *placements, unsigned *count) {
    const mig_profile_t *profile;
    nvmlReturn_t result = find_profile(device, id, count, &profile);
    return result == NVML_SUCCESS ? list_placements(profile->starts, profile->size, placements, count) : result;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count) {
    const mig_profile_t *profile;
    uint32_t starts;
    nvmlReturn_t result = check_profile(device, id, count, &profile);
    if (result == NVML_SUCCESS)
        *count = mig_room(device->image, profile, &starts);
    return result;
}

static nvmlReturn_t create(nvmlDevice_t device, unsigned id, uint32_t start, nvmlGpuInstance_t *instance) {
    const mig_profile_t *profile;
    uint32_t made;
    nvmlReturn_t result = session_check_change(device, instance);
    if (result == NVML_SUCCESS)
        result = check_profile(device, id, instance, &profile);
    if (result == NVML_SUCCESS)
        result = nvml_mig_result(mig_create(device, profile, start, &made));
    if (result == NVML_SUCCESS)
        *instance = handle_of(device, made);
    return result;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance) {
    return create(device, id, MIG_ANY, instance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id,
                                                      const nvmlInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *instance) {
    return placement == NULL ? NVML_ERROR_INVALID_ARGUMENT : create(device, id, placement->start, instance);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) {
    const image_instance_t *found;
    nvmlReturn_t result = check_instance(instance, instance, &found);
    if (result == NVML_SUCCESS)
        result = session_check_change(instance->device, instance);
    return result == NVML_SUCCESS ? nvml_mig_result(mig_destroy(instance->device, instance->id)) : result;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instances,
                                       unsigned *count) {
    const mig_profile_t *profile;
    nvmlReturn_t result = check_profile(device, id, count, &profile);
    if (result != NVML_SUCCESS || instances == NULL)
        return result == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : result;
    *count = 0;
    for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
        const image_instance_t *one = &device->image->instances[i];
        if (one->present && one->profile == profile->profile)
            instances[(*count)++] = handle_of(device, one->id);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance) {
    nvmlReturn_t result = check_capable(device, instance);
    if (result == NVML_SUCCESS && mig_instance(device->image, id) == NULL)
        result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS)
        *instance = handle_of(device, id);
    return result;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    const image_instance_t *found;
    nvmlReturn_t result = check_instance(instance, info, &found);
    if (result != NVML_SUCCESS)
        return result;
    const mig_profile_t *profile = mig_profile(instance->device->image, found->profile);
    *info = (nvmlGpuInstanceInfo_t){.device = instance->device,
                                    .id = found->id,
                                    .profileId = profile->id,
                                    .placement = {.start = found->start, .size = profile->size}};
    return NVML_SUCCESS;
}

static const mig_profile_t *profile_of(nvmlGpuInstance_t instance, const image_instance_t *found) {
    return mig_profile(instance->device->image, found->profile);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned number,
                                                           unsigned engines,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info) {
    const image_instance_t *found;
    nvmlReturn_t result = check_instance(instance, info, &found);
    if (result != NVML_SUCCESS)
        return result;
    if (info->version != NVML_COMPUTE_INSTANCE_PROFILE_INFO_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const mig_profile_t *profile = profile_of(instance, found);
    if (engines != 0 || number >= COMPUTE_PROFILES || !mig_compute_possible(profile, compute_slices[number]))
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned slices = compute_slices[number];
    char name[64];
    mig_name(instance->device->image, profile, slices, name, sizeof name);
    *info = (nvmlComputeInstanceProfileInfo_v2_t){
        .version = info->version,
        .id = number,
        .sliceCount = slices,
        .instanceCount = profile->slices / slices,
        .multiprocessorCount = slices * mig_slice_multiprocessors(instance->device->image),
        .sharedCopyEngineCount = profile->slices,
        .sharedDecoderCount = profile->slices / 2,
    };
    (void)snprintf(info->name, sizeof info->name, "MIG %s", name);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned number, unsigned engines,
                                                          nvmlComputeInstanceProfileInfo_t *info) {
    nvmlComputeInstanceProfileInfo_v2_t wide = {.version = NVML_COMPUTE_INSTANCE_PROFILE_INFO_V2};
    nvmlReturn_t result = info == NULL
                              ? NVML_ERROR_INVALID_ARGUMENT
                              : nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, number, engines, &wide);
    if (result == NVML_SUCCESS)
        *info = (nvmlComputeInstanceProfileInfo_t){.id = wide.id,
                                                   .sliceCount = wide.sliceCount,
                                                   .instanceCount = wide.instanceCount,
                                                   .multiprocessorCount = wide.multiprocessorCount,
                                                   .sharedCopyEngineCount = wide.sharedCopyEngineCount,
                                                   .sharedDecoderCount = wide.sharedDecoderCount};
    return result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned id,
                                                                unsigned *count) {
    const image_instance_t *found;
    nvmlReturn_t result = check_instance(instance, count, &found);
    if (result == NVML_SUCCESS && id >= COMPUTE_PROFILES)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *count = mig_compute_room(instance->device->image, found, compute_slices[id]);
    return result;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned id,
                                                  nvmlComputeInstance_t *compute) {
    const image_instance_t *found;
    uint32_t made;
    nvmlReturn_t result = check_instance(instance, compute, &found);
    if (result == NVML_SUCCESS)
        result = session_check_change(instance->device, compute);
    if (result == NVML_SUCCESS && id >= COMPUTE_PROFILES)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        result = nvml_mig_result(mig_create_compute(instance->device, instance->id, compute_slices[id], &made));
    if (result == NVML_SUCCESS)
        *compute = compute_handle_of(instance, made);
    return result;
}

static nvmlReturn_t check_compute(nvmlComputeInstance_t compute, const void *output,
                                  const image_instance_t **instance_p, const image_compute_instance_t **compute_p) {
    const char *first = (const char *)handles;
    if ((const char *)compute < first || (const char *)compute >= first + sizeof handles || compute->instance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = check_instance(compute->instance, output, instance_p);
    if (result != NVML_SUCCESS)
        return result;
    *compute_p = mig_compute_instance(*instance_p, compute->id);
    return *compute_p != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute) {
    const image_instance_t *found;
    const image_compute_instance_t *own;
    nvmlReturn_t result = check_compute(compute, compute, &found, &own);
    if (result == NVML_SUCCESS)
        result = session_check_change(compute->instance->device, compute);
    return result == NVML_SUCCESS
               ? nvml_mig_result(mig_destroy_compute(compute->instance->device, compute->instance->id, compute->id))
               : result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned id,
                                                nvmlComputeInstance_t *computes, unsigned *count) {
    const image_instance_t *found;
    nvmlReturn_t result = check_instance(instance, count, &found);
    if (result == NVML_SUCCESS && (id >= COMPUTE_PROFILES || computes == NULL))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    *count = 0;
    for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
        if (found->compute_instances[i].present && found->compute_instances[i].slices == compute_slices[id])
            computes[(*count)++] = compute_handle_of(instance, found->compute_instances[i].id);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                   nvmlComputeInstance_t *compute) {
    const image_instance_t *found;
    nvmlReturn_t result = check_instance(instance, compute, &found);
    if (result == NVML_SUCCESS && mig_compute_instance(found, id) == NULL)
        result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS)
        *compute = compute_handle_of(instance, id);
    return result;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info) {
    const image_instance_t *found;
    const image_compute_instance_t *own;
    nvmlReturn_t result = check_compute(compute, info, &found, &own);
    if (result != NVML_SUCCESS)
        return result;
    unsigned profile = 0;
    while (compute_slices[profile] != own->slices)
        profile++;
    *info = (nvmlComputeInstanceInfo_t){.device = compute->instance->device,
                                        .gpuInstance = compute->instance,
                                        .id = own->id,
                                        .profileId = profile,
                                        .placement = {.start = own->start, .size = own->slices}};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info) {
    return nvmlComputeInstanceGetInfo_v2(compute, info);
}
