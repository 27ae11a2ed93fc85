/* The devices that a process can use: those of its container, filtered by CUDA_VISIBLE_DEVICES.
 *
 * A container gets a GPU by its file. A MIG device has no file here, so if NVIDIA_VISIBLE_DEVICES names MIG devices,
 * only these are visible, as if only their capability files had been mounted. CUDA uses one MIG device per process,
 * the first. */
#define _GNU_SOURCE
#include "cuda/device/visible.h"

#include <stdlib.h>
#include <string.h>

#include "image/mig_layout.h"

static gpu_t migs[IMAGE_MAX_GPUS];

const image_instance_t *visible_instance(const gpu_t *gpu) {
    static const image_instance_t gone = {.present = 0};
    const image_instance_t *instance = mig_instance(gpu->image, gpu->instance - 1);
    return instance != NULL ? instance : &gone;
}

const image_compute_instance_t *visible_compute_instance(const gpu_t *gpu) {
    static const image_compute_instance_t gone = {.uuid = ""};
    const image_compute_instance_t *compute = mig_compute_instance(visible_instance(gpu), gpu->compute_instance - 1);
    return compute != NULL ? compute : &gone;
}

static bool is_named(const char *list, const char *uuid) {
    const char *at = list != NULL ? strstr(list, uuid) : NULL;
    return at != NULL && (at[strlen(uuid)] == '\0' || at[strlen(uuid)] == ',');
}

/* The device's part of the GPU's multiprocessors; never 0, or its kernels would not end. */
static unsigned percent_of(const image_t *image, const image_compute_instance_t *compute) {
    unsigned multiprocessors = compute->slices * mig_slice_multiprocessors(image);
    if (multiprocessors >= image->multiprocessors)
        return 100;
    unsigned percent = (100 * multiprocessors + image->multiprocessors / 2) / image->multiprocessors;
    return percent == 0 ? 1 : percent;
}

/* Add the MIG devices of a GPU that the container was given, by placement. */
static unsigned add_migs(gpu_t *gpu, const char *queued, gpu_t **devices, unsigned count) {
    bool some = queued != NULL && strstr(queued, "MIG-") != NULL;
    for (unsigned start = 0; start < gpu->image->mig_slices; start++) {
        for (unsigned i = 0; i < IMAGE_INSTANCES * IMAGE_INSTANCES && count < IMAGE_MAX_GPUS; i++) {
            const image_instance_t *instance = &gpu->image->instances[i / IMAGE_INSTANCES];
            const image_compute_instance_t *compute = &instance->compute_instances[i % IMAGE_INSTANCES];
            if (!instance->present || instance->start != start || !compute->present)
                continue;
            if (some && !is_named(queued, compute->uuid))
                continue;
            migs[count] = *gpu;
            pthread_mutex_init(&migs[count].mutex, NULL);
            migs[count].instance = instance->id + 1;
            migs[count].compute_instance = compute->id + 1;
            migs[count].percent = percent_of(gpu->image, compute);
            devices[count] = &migs[count];
            count++;
        }
    }
    return count;
}

static const char *uuid_of(const gpu_t *gpu) {
    return gpu->instance == 0 ? gpu->image->uuid : visible_compute_instance(gpu)->uuid;
}

static gpu_t *select_device(const char *word, gpu_t **queued, unsigned count) {
    char *end;
    unsigned long index = strtoul(word, &end, 10);
    bool is_number = *word != '\0' && *end == '\0';
    bool is_uuid = strncmp(word, "GPU-", 4) == 0 || strncmp(word, "MIG-", 4) == 0;
    for (unsigned i = 0; i < count; i++) {
        if (is_number ? i == index : is_uuid && strncmp(uuid_of(queued[i]), word, strlen(word)) == 0)
            return queued[i];
    }
    return NULL;
}

/* Select devices as CUDA does: the list has numbers or UUID prefixes, and ends at the first entry that is neither. An
 * MPS server's list may have GPUs that this process does not see. */
static unsigned select_visible(const char *wanted, bool ends, gpu_t **queued, unsigned count, gpu_t **devices) {
    char *words = strdup(wanted);
    char *rest = words;
    char *word;
    unsigned found = 0;
    while (words != NULL && found < IMAGE_MAX_GPUS && (word = strsep(&rest, ",")) != NULL) {
        gpu_t *gpu = select_device(word, queued, count);
        if (gpu == NULL && ends)
            break;
        if (gpu != NULL)
            devices[found++] = gpu;
    }
    free(words);
    return found;
}

unsigned visible_devices(gpu_t *gpus, unsigned present, const char *served, gpu_t **devices) {
    gpu_t *queued[IMAGE_MAX_GPUS];
    unsigned count = 0;
    const char *container = getenv("NVIDIA_VISIBLE_DEVICES");
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    for (unsigned i = 0; i < present && count < IMAGE_MAX_GPUS; i++) {
        if (gpus[i].image->mig_mode)
            count = add_migs(&gpus[i], container, queued, count);
        else
            queued[count++] = &gpus[i];
    }
    if (served != NULL && count > 0 && queued[0]->instance == 0) {
        memcpy(devices, queued, count * sizeof *devices);
        count = select_visible(served, false, devices, count, queued);
    }
    if (wanted != NULL)
        count = select_visible(wanted, true, queued, count, devices);
    else
        memcpy(devices, queued, count * sizeof *devices);
    for (unsigned i = 0; i < count; i++) {
        if (devices[i]->instance != 0) {
            devices[0] = devices[i];
            return 1;
        }
    }
    return count;
}
