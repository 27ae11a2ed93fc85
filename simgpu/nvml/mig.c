/* A GPU's MIG mode, and its MIG devices. */
#include "nvml/mig.h"

#include "nvml/session.h"

#define COPY_ENGINES 1u

const image_compute_instance_t *nvml_mig_compute_instance(nvmlDevice_t mig) {
    static const image_compute_instance_t gone = {.uuid = ""};
    const image_instance_t *instance = mig_instance(mig->image, mig->instance - 1);
    const image_compute_instance_t *compute =
        instance != NULL ? mig_compute_instance(instance, mig->compute_instance - 1) : NULL;
    return compute != NULL ? compute : &gone;
}

nvmlReturn_t nvml_mig_result(mig_result_t result) {
    static const nvmlReturn_t results[] = {
        [MIG_OK] = NVML_SUCCESS,
        [MIG_INVALID] = NVML_ERROR_INVALID_ARGUMENT,
        [MIG_NOT_ENABLED] = NVML_ERROR_NOT_SUPPORTED,
        [MIG_IN_USE] = NVML_ERROR_IN_USE,
        [MIG_NO_ROOM] = NVML_ERROR_INSUFFICIENT_RESOURCES,
        [MIG_NOT_FOUND] = NVML_ERROR_NOT_FOUND,
    };
    return results[result];
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    nvmlReturn_t result = session_check(device, current);
    if (result != NVML_SUCCESS)
        return result;
    if (pending == NULL || device->instance != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (device->image->mig_slices == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = device->image->mig_mode;
    *pending = device->image->mig_pending;
    return NVML_SUCCESS;
}

/* Change the mode at once if the GPU is unused; otherwise it changes at the next reset, and `activation` says why. */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation) {
    nvmlReturn_t result = session_check_change(device, activation);
    if (result != NVML_SUCCESS)
        return result;
    if (device->image->mig_slices == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    *activation = nvml_mig_result(mig_set_mode(device, mode == 1));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    nvmlReturn_t result = session_check(device, count);
    if (result == NVML_SUCCESS)
        *count = device->image->mig_mode ? mig_gpu_slices(device->image) : 0;
    return result;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig) {
    nvmlReturn_t result = session_check(device, is_mig);
    if (result == NVML_SUCCESS)
        *is_mig = device->instance != 0;
    return result;
}

/* MIG devices are numbered by placement, without gaps. On a real GPU there may be gaps. */
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig) {
    nvmlReturn_t result = session_check(device, mig);
    if (result != NVML_SUCCESS)
        return result;
    if (device->instance != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->image->mig_mode)
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned start = 0; start < device->image->mig_slices; start++) {
        for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
            const image_instance_t *instance = &device->image->instances[i];
            if (!instance->present || instance->start != start)
                continue;
            for (unsigned n = 0; n < IMAGE_INSTANCES; n++) {
                if (instance->compute_instances[n].present && index-- == 0) {
                    *mig = session_mig(device, instance->id, instance->compute_instances[n].id);
                    return NVML_SUCCESS;
                }
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    nvmlReturn_t result = session_check(mig, device);
    if (result == NVML_SUCCESS && mig->instance == 0)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *device = session_parent(mig);
    return result;
}

/* Only MIG devices have these values. */
static nvmlReturn_t check_mig(nvmlDevice_t mig, const void *output) {
    nvmlReturn_t result = session_check(mig, output);
    return result == NVML_SUCCESS && mig->instance == 0 ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned *id) {
    nvmlReturn_t result = check_mig(mig, id);
    if (result == NVML_SUCCESS)
        *id = mig->instance - 1;
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned *id) {
    nvmlReturn_t result = check_mig(mig, id);
    if (result == NVML_SUCCESS)
        *id = mig->compute_instance - 1;
    return result;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t mig, nvmlDeviceAttributes_t *attributes) {
    nvmlReturn_t result = check_mig(mig, attributes);
    if (result != NVML_SUCCESS)
        return result;
    const image_instance_t *instance = mig_instance(mig->image, mig->instance - 1);
    const mig_profile_t *profile = mig_profile(mig->image, instance->profile);
    unsigned slices = nvml_mig_compute_instance(mig)->slices;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = slices * mig_slice_multiprocessors(mig->image),
        .sharedCopyEngineCount = profile->slices * COPY_ENGINES,
        .sharedDecoderCount = profile->slices / 2,
        .sharedJpegCount = profile->attribute[0] != '\0',
        .sharedOfaCount = profile->attribute[0] != '\0',
        .gpuInstanceSliceCount = profile->slices,
        .computeInstanceSliceCount = slices,
        .memorySizeMB = instance->memory_bytes >> 20,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t mig, nvmlDeviceAttributes_t *attributes) {
    return nvmlDeviceGetAttributes_v2(mig, attributes);
}
