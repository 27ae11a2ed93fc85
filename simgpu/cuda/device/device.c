/* cuInit, and the basic properties of devices. */
#define _GNU_SOURCE
#include "cuda/device/device.h"

#include <stdio.h>
#include <string.h>

#include "cuda/device/mps.h"
#include "cuda/device/visible.h"
#include "image/mig_layout.h"
#include "state/shared.h"
#include "time/timeline.h"

static struct {
    pthread_mutex_t mutex;
    bool ready;
    _Atomic bool ended;
    bool forked; /* CUDA does not work in the child of a process that has initialized it */
    unsigned present;
    gpu_t gpus[IMAGE_MAX_GPUS];
    unsigned count;
    gpu_t *visible[IMAGE_MAX_GPUS]; /* by CUDA's device numbers, after CUDA_VISIBLE_DEVICES */
} driver = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void after_fork(void) {
    driver.forked = true;
    mps_forget();
}

static CUresult start(void) {
    static const CUresult results[] = {
        [GPUS_OK] = CUDA_SUCCESS,
        [GPUS_NONE] = CUDA_ERROR_NO_DEVICE,
        [GPUS_MISMATCH] = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        [GPUS_DENIED] = CUDA_ERROR_OPERATING_SYSTEM,
    };
    if (!gpus_accessible(gpus_directory()))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (driver.present == 0) {
        CUresult result = results[gpus_open(gpus_directory(), GPUS_WRITE, driver.gpus, &driver.present)];
        if (result != CUDA_SUCCESS)
            return result;
    }
    CUresult result = mps_connect();
    if (result != CUDA_SUCCESS)
        return result;
    driver.count = visible_devices(driver.gpus, driver.present, mps_devices(), driver.visible);
    if (driver.count == 0)
        return CUDA_ERROR_NO_DEVICE;
    pthread_atfork(NULL, NULL, after_fork);
    driver.ready = true;
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags) {
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (driver.ended)
        return CUDA_ERROR_DEINITIALIZED;
    if (driver.forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&driver.mutex);
    CUresult result = driver.ready ? CUDA_SUCCESS : start();
    pthread_mutex_unlock(&driver.mutex);
    return result;
}

/* The program ends: calls in destructors that run later find no driver. */
__attribute__((destructor)) static void end(void) {
    driver.ended = true;
    for (unsigned i = 0; i < driver.count && !driver.forked; i++) {
        if (driver.visible[i]->mps != 0 && driver.visible[i]->slot >= 0)
            timeline_drop(driver.visible[i]);
    }
}

CUresult driver_ready(void) {
    if (driver.ended)
        return CUDA_ERROR_DEINITIALIZED;
    return driver.ready && !driver.forked ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult driver_gpu(CUdevice device, gpu_t **gpu_p) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (device < 0 || (unsigned)device >= driver.count)
        return CUDA_ERROR_INVALID_DEVICE;
    *gpu_p = driver.visible[device];
    return CUDA_SUCCESS;
}

CUdevice driver_device(const gpu_t *gpu) {
    for (unsigned i = 0; i < driver.count; i++) {
        if (driver.visible[i] == gpu)
            return (CUdevice)i;
    }
    return -1;
}

gpu_t *driver_gpu_of(int memory) {
    gpu_t *gpu;
    for (CUdevice device = 0; driver_gpu(device, &gpu) == CUDA_SUCCESS; device++) {
        if (shared_is_on(memory, gpu))
            return gpu;
    }
    return NULL;
}

int driver_version(void) {
    static gpu_t gpus[IMAGE_MAX_GPUS];
    static unsigned count;
    pthread_mutex_lock(&driver.mutex);
    if (driver.present == 0 && count == 0)
        (void)gpus_open(gpus_directory(), GPUS_READ, gpus, &count);
    const gpu_t *gpu = driver.present > 0 ? &driver.gpus[0] : count > 0 ? &gpus[0] : NULL;
    int version = gpu != NULL ? (int)gpu->image->cuda_version : 0;
    pthread_mutex_unlock(&driver.mutex);
    return version;
}

/* Works before cuInit, as with the real driver. */
CUresult cuDriverGetVersion(int *version) {
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = driver_version();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS && count == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *count = (int)driver.count;
    return result;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    gpu_t *gpu;
    CUresult result = driver_gpu(ordinal, &gpu);
    if (result == CUDA_SUCCESS && device == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return result;
}

static CUresult copy_text(const char *text, char *output, int length) {
    if (output == NULL || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    (void)snprintf(output, (size_t)length, "%s", text);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result != CUDA_SUCCESS || gpu->instance == 0)
        return result == CUDA_SUCCESS ? copy_text(gpu->image->model, name, length) : result;
    char profile[64], text[192];
    const mig_profile_t *own = mig_profile(gpu->image, visible_instance(gpu)->profile);
    mig_name(gpu->image, own, visible_compute_instance(gpu)->slices, profile, sizeof profile);
    (void)snprintf(text, sizeof text, "%s MIG %s", gpu->image->model, profile);
    return copy_text(text, name, length);
}

CUresult cuDeviceGetPCIBusId(char *bus_id, int length, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    return result == CUDA_SUCCESS ? copy_text(gpu->image->pci_bus_id + 4, bus_id, length) : result;
}

/* The domain is optional, as usual for PCI addresses. */
CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *bus_id) {
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    unsigned wanted[4] = {0}, is[4];
    if (device == NULL || bus_id == NULL ||
        (sscanf(bus_id, "%x:%x:%x.%x", &wanted[0], &wanted[1], &wanted[2], &wanted[3]) < 3 &&
         sscanf(bus_id, "%x:%x.%x", &wanted[1], &wanted[2], &wanted[3]) < 2))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < driver.count; i++) {
        (void)sscanf(driver.visible[i]->image->pci_bus_id, "%x:%x:%x.%x", &is[0], &is[1], &is[2], &is[3]);
        if (memcmp(is, wanted, sizeof is) != 0)
            continue;
        *device = (CUdevice)i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result == CUDA_SUCCESS && uuid == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        memcpy(uuid->bytes, gpu->instance == 0 ? gpu->image->uuid_bytes : visible_compute_instance(gpu)->uuid_bytes,
               sizeof uuid->bytes);
    return result;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result == CUDA_SUCCESS && bytes == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *bytes = gpu_memory_bytes(gpu);
    return result;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    size_t total_bytes = 0;
    CUresult result = bytes != NULL ? cuDeviceTotalMem_v2(&total_bytes, device) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *bytes = total_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)total_bytes;
    return result;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result == CUDA_SUCCESS && (major == NULL || minor == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    *major = (int)gpu->image->compute_capability_major;
    *minor = (int)gpu->image->compute_capability_minor;
    return CUDA_SUCCESS;
}
