#define _GNU_SOURCE
#include "image/gpus.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "image/mig_layout.h"

const char *gpus_directory(void) {
    const char *directory = getenv(SIMGPU_DIRECTORY_VARIABLE);
    return directory != NULL && directory[0] != '\0' ? directory : SIMGPU_DIRECTORY_DEFAULT;
}

/* Check the texts and counts that readers depend on: a foreign file may have the right magic word and nothing else
 * right. What drivers write later is not checked again. */
static bool is_sound(const image_t *image, int descriptor) {
    const struct {
        const char *text;
        size_t size;
    } texts[] = {{image->driver_version, sizeof image->driver_version},
                 {image->model, sizeof image->model},
                 {image->uuid, sizeof image->uuid},
                 {image->pci_bus_id, sizeof image->pci_bus_id}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (memchr(texts[i].text, '\0', texts[i].size) == NULL)
            return false;
    }
    for (size_t i = 0; i < IMAGE_INSTANCES; i++) {
        const image_instance_t *instance = &image->instances[i];
        if (instance->present && mig_profile(image, instance->profile) == NULL)
            return false;
        for (size_t compute = 0; compute < IMAGE_INSTANCES; compute++) {
            if (memchr(instance->compute_instances[compute].uuid, '\0',
                       sizeof instance->compute_instances[compute].uuid) == NULL)
                return false;
        }
    }
    /* Read the size last: another process may be adding a queue, and it grows the file first. */
    uint32_t slots = image->slots_high;
    struct stat status;
    if (slots > IMAGE_SLOTS || fstat(descriptor, &status) != 0)
        return false;
    size_t queues_bytes = slots * sizeof(image_queue_t);
    return image->node_index < IMAGE_MAX_GPUS &&
           (slots == 0 || (size_t)status.st_size >= sizeof(image_t) + queues_bytes) &&
           image->limits_high <= IMAGE_LIMITS && image->orphans_high <= IMAGE_ORPHANS;
}

bool gpus_accessible(const char *directory) {
    static int control = -1; /* kept open, as in the real driver */
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/control", directory);
    if (control < 0)
        control = open(path, O_RDWR | O_CLOEXEC);
    /* ENXIO: the device file may be opened, but has no driver behind it. The simulation needs none. */
    return control >= 0 || errno == ENOENT || errno == ENOTDIR || errno == ENXIO;
}

static gpus_result_t gpu_map(int directory, const char *name, gpus_access_t access, gpu_t *gpu) {
    int descriptor = openat(directory, name, (access == GPUS_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (descriptor < 0)
        return GPUS_DENIED;
    gpu->descriptor = descriptor;
    gpu->slot = -1;
    gpu->percent = 100;
    pthread_mutex_init(&gpu->mutex, NULL);
    pthread_mutex_init(&gpu->queues_mutex, NULL);

    struct stat status;
    if (fstat(descriptor, &status) != 0 || status.st_size < (off_t)sizeof(image_t))
        return GPUS_MISMATCH;
    int protection = access == GPUS_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
    void *mapping = mmap(NULL, sizeof(image_file_t), protection, MAP_SHARED, descriptor, 0);
    if (mapping == MAP_FAILED)
        return GPUS_DENIED;
    gpu->image = mapping;
    bool ours = memcmp(gpu->image->magic, IMAGE_MAGIC, sizeof gpu->image->magic) == 0 &&
                gpu->image->version == IMAGE_VERSION && gpu->image->size_bytes == sizeof(image_file_t) &&
                is_sound(gpu->image, descriptor);
    return ours ? GPUS_OK : GPUS_MISMATCH;
}

static int by_node_index(const void *left, const void *right) {
    uint32_t a = ((const gpu_t *)left)->image->node_index;
    uint32_t b = ((const gpu_t *)right)->image->node_index;
    return (a > b) - (a < b);
}

gpus_result_t gpus_open(const char *directory, gpus_access_t access, gpu_t *gpus, unsigned *count_p) {
    *count_p = 0;
    DIR *entries = opendir(directory);
    if (entries == NULL)
        return errno == EACCES ? GPUS_DENIED : GPUS_NONE;

    gpus_result_t result = GPUS_OK;
    unsigned count = 0;
    struct dirent *entry;
    while (result == GPUS_OK && count < IMAGE_MAX_GPUS && (entry = readdir(entries)) != NULL) {
        unsigned index;
        if (sscanf(entry->d_name, "gpu%u-GPU-", &index) != 1)
            continue;
        result = gpu_map(dirfd(entries), entry->d_name, access, &gpus[count]);
        count += result == GPUS_OK;
    }
    closedir(entries);
    if (result != GPUS_OK)
        return result;
    if (count == 0)
        return GPUS_NONE;

    qsort(gpus, count, sizeof *gpus, by_node_index);
    for (unsigned i = 0; i < count; i++)
        gpus[i].index = i;
    *count_p = count;
    return GPUS_OK;
}

bool gpu_is_usable(const gpu_t *gpu) {
    if (gpu->instance == 0)
        return !gpu->image->mig_mode;
    const image_instance_t *instance = mig_instance(gpu->image, gpu->instance - 1);
    return instance != NULL && mig_compute_instance(instance, gpu->compute_instance - 1) != NULL;
}

uint64_t gpu_memory_bytes(const gpu_t *gpu) {
    if (gpu->instance == 0)
        return gpu->image->memory_bytes;
    const image_instance_t *instance = mig_instance(gpu->image, gpu->instance - 1);
    return instance != NULL ? instance->memory_bytes : 0;
}

image_schedule_t *gpu_schedule(const gpu_t *gpu) {
    const image_instance_t *instance = gpu->instance == 0 ? NULL : mig_instance(gpu->image, gpu->instance - 1);
    return instance != NULL ? (image_schedule_t *)&instance->schedule : &gpu->image->schedule;
}
