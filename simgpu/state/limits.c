#include "state/limits.h"

#include <string.h>

#include "state/cgroup.h"
#include "state/locks.h"

static image_limit_t *find(image_t *image, uint64_t cgroup) {
    for (unsigned i = 0; i < image->limits_high; i++) {
        if (image->limits[i].cgroup == cgroup)
            return &image->limits[i];
    }
    return NULL;
}

static bool is_none(const image_limit_t *limit) {
    return limit->soft_bytes == 0 && limit->hard_bytes == LIMITS_NONE;
}

static bool has_ended(const image_limit_t *limit) {
    char path[IMAGE_CGROUP_PATH];
    memcpy(path, limit->path, sizeof path);
    path[sizeof path - 1] = '\0';
    return limit->soft_bytes == 0 && path[0] != '\0' && cgroup_of(path) != limit->cgroup;
}

/* Reuse an entry without limits, or of a group that is gone, only when the table is full. */
static image_limit_t *find_room(image_t *image) {
    if (image->limits_high < IMAGE_LIMITS)
        return &image->limits[image->limits_high];
    for (unsigned i = 0; i < IMAGE_LIMITS; i++) {
        if (is_none(&image->limits[i]) || has_ended(&image->limits[i]))
            return &image->limits[i];
    }
    return NULL;
}

bool limits_set(gpu_t *gpu, const char *path, uint64_t cgroup, uint64_t soft_bytes, uint64_t hard_bytes) {
    gpu_lock_changes(gpu);
    image_t *image = gpu->image;
    image_limit_t *limit = find(image, cgroup);
    if (limit == NULL)
        limit = find_room(image);
    if (limit != NULL) {
        *limit = (image_limit_t){.cgroup = cgroup, .soft_bytes = soft_bytes, .hard_bytes = hard_bytes};
        if (strlen(path) < sizeof limit->path)
            strcpy(limit->path, path);
        if (limit == &image->limits[image->limits_high])
            image->limits_high++;
    }
    gpu_unlock_changes(gpu);
    return limit != NULL;
}

bool limits_get(const gpu_t *gpu, uint64_t cgroup, uint64_t *soft_bytes_p, uint64_t *hard_bytes_p) {
    const image_limit_t *limit = find(gpu->image, cgroup);
    if (limit == NULL)
        return false;
    *soft_bytes_p = limit->soft_bytes;
    *hard_bytes_p = limit->hard_bytes;
    return true;
}

bool slot_is_in_cgroup(const image_slot_t *slot, uint64_t cgroup) {
    for (unsigned i = 0; i < IMAGE_CGROUPS && slot->cgroups[i] != 0; i++) {
        if (slot->cgroups[i] == cgroup)
            return true;
    }
    return false;
}

static uint64_t charged_bytes(const image_t *image, uint64_t cgroup) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < image->slots_high; i++) {
        if (slot_is_in_cgroup(&image->slots[i], cgroup))
            bytes += image->slots[i].memory_bytes;
    }
    return bytes;
}

bool limits_allow(const gpu_t *gpu, const image_slot_t *slot, uint64_t bytes, uint64_t left_bytes) {
    const image_t *image = gpu->image;
    for (unsigned i = 0; i < image->limits_high && !image->mig_mode; i++) {
        const image_limit_t *limit = &image->limits[i];
        uint64_t used_bytes = charged_bytes(image, limit->cgroup);
        if (slot_is_in_cgroup(slot, limit->cgroup)) {
            if (bytes > limit->hard_bytes || used_bytes > limit->hard_bytes - bytes)
                return false;
        } else if (used_bytes < limit->soft_bytes) {
            uint64_t kept_bytes = limit->soft_bytes - used_bytes;
            left_bytes = left_bytes > kept_bytes ? left_bytes - kept_bytes : 0;
        }
    }
    return bytes <= left_bytes;
}
