/* nvmlInit, nvmlShutdown, and properties of the whole node. */
#include "nvml/session.h"

#include <string.h>

#include "image/clock.h"

#define HUNG_POLL_NS 10000000ull

static struct {
    pthread_mutex_t mutex;
    unsigned users; /* calls of nvmlInit without nvmlShutdown */
    unsigned count; /* kept after shutdown: the descriptors must stay open (gpus.h) */
    bool writable;
    gpu_t gpus[IMAGE_MAX_GPUS];
    gpu_t migs[IMAGE_MAX_GPUS][SESSION_IDS][IMAGE_INSTANCES]; /* by GPU, GPU instance and compute instance */
} session = {.mutex = PTHREAD_MUTEX_INITIALIZER};

const gpu_t *session_gpus(unsigned *count_p) {
    *count_p = session.count;
    return session.users > 0 ? session.gpus : NULL;
}

static bool is_mig(nvmlDevice_t device) {
    const gpu_t *first = &session.migs[0][0][0];
    const gpu_t *end = first + sizeof session.migs / sizeof *first;
    return device >= first && device < end && device->instance != 0;
}

nvmlReturn_t session_check(nvmlDevice_t device, const void *output) {
    if (session.users == 0)
        return NVML_ERROR_UNINITIALIZED;
    bool is_gpu = device >= session.gpus && device < session.gpus + session.count;
    if ((!is_gpu && !is_mig(device)) || output == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!is_gpu && !gpu_is_usable(device))
        return NVML_ERROR_NOT_FOUND; /* destroyed meanwhile */
    while (device->image->hung)
        clock_sleep_until(clock_now_ns() + HUNG_POLL_NS);
    return device->image->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t session_check_change(nvmlDevice_t device, const void *output) {
    nvmlReturn_t result = session_check(device, output);
    if (result != NVML_SUCCESS)
        return result;
    if (device->instance != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return session.writable ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

nvmlDevice_t session_mig(nvmlDevice_t gpu, unsigned instance_id, unsigned compute_id) {
    gpu_t *mig = &session.migs[gpu - session.gpus][instance_id][compute_id];
    *mig = (gpu_t){.image = gpu->image,
                   .descriptor = gpu->descriptor,
                   .index = gpu->index,
                   .slot = -1,
                   .instance = instance_id + 1,
                   .compute_instance = compute_id + 1};
    return mig;
}

nvmlDevice_t session_parent(nvmlDevice_t device) {
    return &session.gpus[device->index];
}

nvmlReturn_t session_copy(const char *text, char *output, unsigned length) {
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(output, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t open_gpus(void) {
    static const nvmlReturn_t results[] = {
        [GPUS_OK] = NVML_SUCCESS,
        [GPUS_NONE] = NVML_ERROR_DRIVER_NOT_LOADED,
        [GPUS_MISMATCH] = NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        [GPUS_DENIED] = NVML_ERROR_NO_PERMISSION,
    };
    if (session.count > 0)
        return NVML_SUCCESS;
    if (!gpus_accessible(gpus_directory()))
        return NVML_ERROR_UNKNOWN; /* as the real NVML returns in a container that may not open the device */
    gpus_result_t result = gpus_open(gpus_directory(), GPUS_WRITE, session.gpus, &session.count);
    session.writable = result == GPUS_OK;
    if (result == GPUS_DENIED)
        result = gpus_open(gpus_directory(), GPUS_READ, session.gpus, &session.count);
    return results[result];
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags; /* they relax checks that the simulation does not make */
    pthread_mutex_lock(&session.mutex);
    nvmlReturn_t result = open_gpus();
    session.users += result == NVML_SUCCESS;
    pthread_mutex_unlock(&session.mutex);
    return result;
}

nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&session.mutex);
    nvmlReturn_t result = session.users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    session.users -= result == NVML_SUCCESS;
    pthread_mutex_unlock(&session.mutex);
    return result;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
        return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
        return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_OPERATING_SYSTEM:
        return "Operating System call failed";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE:
        return "In use by another client";
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
        return "Insufficient Resources";
    case NVML_ERROR_MEMORY:
        return "Insufficient Memory";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument version mismatch";
    case NVML_ERROR_UNKNOWN:
        break;
    }
    return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    if (session.users == 0)
        return NVML_ERROR_UNINITIALIZED;
    return version == NULL ? NVML_ERROR_INVALID_ARGUMENT
                           : session_copy(session.gpus[0].image->driver_version, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    char text[64] = "12.";
    if (session.users == 0)
        return NVML_ERROR_UNINITIALIZED;
    strcat(text, session.gpus[0].image->driver_version);
    return version == NULL ? NVML_ERROR_INVALID_ARGUMENT : session_copy(text, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (session.users == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = (int)session.gpus[0].image->cuda_version;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}
