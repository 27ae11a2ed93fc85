/* Whether a process may have a context on a GPU, and how much of the GPU it gets, by compute mode and MPS.
 *
 * A process is an MPS client if CUDA_MPS_PIPE_DIRECTORY, or the default directory, contains a control pipe. All
 * clients share one server, so a GPU in exclusive mode admits them all. */
#define _GNU_SOURCE
#include "cuda/device/mps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "state/slots.h"

#define WHOLE 100.0
#define PROHIBITED 2u
#define EXCLUSIVE_PROCESS 3u
#define DEFAULT_PIPE_DIRECTORY "/tmp/nvidia-mps"

/* False: the path is too long. */
static bool pipe_path(const char *name, char *path, size_t size) {
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int length = snprintf(path, size, "%s/%s", directory != NULL ? directory : DEFAULT_PIPE_DIRECTORY, name);
    return length > 0 && (size_t)length < size;
}

bool mps_is_client(void) {
    char path[4096];
    struct stat status;
    return pipe_path("control", path, sizeof path) && stat(path, &status) == 0;
}

static uint64_t parse_size(const char *text) {
    char *end;
    uint64_t number = strtoull(text, &end, 10);
    return *end == 'G' ? number << 30 : *end == 'M' ? number << 20 : *end == 'K' ? number << 10 : number;
}

/* Read the default limit, in the format that `mps_control.c` writes. */
static uint64_t default_limit(CUdevice device) {
    char path[4096], line[256];
    uint64_t limit_bytes = 0;
    FILE *file = pipe_path("limits", path, sizeof path) ? fopen(path, "re") : NULL;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        int ordinal;
        char size[64];
        if (sscanf(line, "default_device_pinned_mem_limit %d %63s", &ordinal, size) == 2 && ordinal == device)
            limit_bytes = parse_size(size);
    }
    if (file != NULL)
        fclose(file);
    return limit_bytes;
}

/* Parse `0=2G,1=10G`, with the process's device numbers. */
static uint64_t own_limit(CUdevice device) {
    const char *at = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    while (at != NULL && *at != '\0') {
        int ordinal, used = 0;
        if (sscanf(at, "%d=%n", &ordinal, &used) == 1 && used > 0 && ordinal == device)
            return parse_size(at + used);
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    return 0;
}

/* Read the default active thread percentage, which holds for all devices. */
static double default_percent(void) {
    char path[4096], line[256];
    double percent = WHOLE;
    FILE *file = pipe_path("limits", path, sizeof path) ? fopen(path, "re") : NULL;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        (void)sscanf(line, "default_active_thread_percentage %lf", &percent);
    if (file != NULL)
        fclose(file);
    return percent;
}

/* A process can lower its percentage below the default, but not raise it. */
unsigned mps_percent(void) {
    if (!mps_is_client())
        return WHOLE;
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double percent = default_percent(), own = text != NULL ? atof(text) : 0;
    if (own > 0 && own < percent)
        percent = own;
    return percent < 1 ? 1 : (unsigned)(percent + 0.5);
}

/* A process can lower its limit below the default, but not raise it. */
uint64_t mps_limit_bytes(CUdevice device) {
    if (!mps_is_client())
        return 0;
    uint64_t limit_bytes = default_limit(device), own_bytes = own_limit(device);
    return own_bytes != 0 && (limit_bytes == 0 || own_bytes < limit_bytes) ? own_bytes : limit_bytes;
}

bool mps_allows(const gpu_t *gpu) {
    if (gpu->image->compute_mode == PROHIBITED)
        return false;
    if (gpu->image->compute_mode != EXCLUSIVE_PROCESS || gpu->slot >= 0 || mps_is_client())
        return true;
    return slots_holders(gpu, NULL, 0) == 0;
}
