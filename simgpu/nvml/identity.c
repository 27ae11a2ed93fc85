/* Enumerates GPUs and returns their properties. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "image/models.h"
#include "nvml/mig.h"
#include "nvml/session.h"

#define BRAND_NVIDIA 14u
#define COMPUTE_MODE_EXCLUSIVE_THREAD 1u /* no longer there */
#define COMPUTE_MODE_EXCLUSIVE_PROCESS 3u

typedef bool (*matches_t)(const gpu_t *gpu, const char *text);

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    unsigned present;
    const gpu_t *gpus = session_gpus(&present);
    if (gpus == NULL)
        return NVML_ERROR_UNINITIALIZED;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < present; i++) {
        if (gpus[i].image->silent)
            return NVML_ERROR_UNKNOWN;
    }
    *count = present;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count) {
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    unsigned count;
    const gpu_t *gpus = session_gpus(&count);
    if (gpus == NULL)
        return NVML_ERROR_UNINITIALIZED;
    if (index >= count || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = (nvmlDevice_t)&gpus[index];
    return session_check(*device, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t find(const char *text, matches_t matches, nvmlDevice_t *device) {
    unsigned count;
    const gpu_t *gpus = session_gpus(&count);
    if (gpus == NULL)
        return NVML_ERROR_UNINITIALIZED;
    if (text == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < count; i++) {
        if (matches(&gpus[i], text))
            return nvmlDeviceGetHandleByIndex_v2(i, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t find_mig(const char *uuid, nvmlDevice_t *device) {
    unsigned count;
    const gpu_t *gpus = session_gpus(&count);
    if (gpus == NULL)
        return NVML_ERROR_UNINITIALIZED;
    for (unsigned i = 0; i < count; i++) {
        for (unsigned n = 0; nvmlDeviceGetMigDeviceHandleByIndex((nvmlDevice_t)&gpus[i], n, device) == NVML_SUCCESS;
             n++) {
            if (strcmp(nvml_mig_compute_instance(*device)->uuid, uuid) == 0)
                return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static bool has_uuid(const gpu_t *gpu, const char *text) {
    return strcmp(gpu->image->uuid, text) == 0;
}

/* Some clients write domains with four digits, others with eight. */
static bool has_bus_id(const gpu_t *gpu, const char *text) {
    return strcasecmp(gpu->image->pci_bus_id, text) == 0 || strcasecmp(gpu->image->pci_bus_id + 4, text) == 0;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    if (uuid != NULL && device != NULL && strncmp(uuid, "MIG-", 4) == 0)
        return find_mig(uuid, device);
    return find(uuid, has_uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    return find(bus_id, has_bus_id, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    return find(bus_id, has_bus_id, device);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    nvmlReturn_t result = session_check(device, uuid);
    if (result == NVML_SUCCESS && device->instance != 0)
        return session_copy(nvml_mig_compute_instance(device)->uuid, uuid, length);
    return result == NVML_SUCCESS ? session_copy(device->image->uuid, uuid, length) : result;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    nvmlReturn_t result = session_check(device, name);
    char text[192];
    if (result != NVML_SUCCESS || device->instance == 0)
        return result == NVML_SUCCESS ? session_copy(device->image->model, name, length) : result;
    const image_instance_t *instance = mig_instance(device->image, device->instance - 1);
    char profile[64];
    mig_name(device->image, mig_profile(device->image, instance->profile), nvml_mig_compute_instance(device)->slices,
             profile, sizeof profile);
    (void)snprintf(text, sizeof text, "%s MIG %s", device->image->model, profile);
    return session_copy(text, name, length);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    nvmlReturn_t result = session_check(device, index);
    if (result == NVML_SUCCESS)
        *index = device->index;
    return result;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *number) {
    nvmlReturn_t result = session_check(device, number);
    if (result == NVML_SUCCESS)
        *number = device->image->node_index;
    return result;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    nvmlReturn_t result = session_check(device, info);
    if (result != NVML_SUCCESS)
        return result;
    memset(info, 0, sizeof *info);
    memcpy(info->busId, device->image->pci_bus_id, sizeof info->busId);
    memcpy(info->busIdLegacy, device->image->pci_bus_id + 4, strlen(device->image->pci_bus_id + 4));
    (void)sscanf(info->busId, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    const model_t *model = model_for(device->image);
    info->pciDeviceId = (unsigned)model->pci_device << 16 | MODELS_PCI_VENDOR;
    info->pciSubSystemId = (unsigned)model->pci_subsystem << 16 | MODELS_PCI_VENDOR;
    return NVML_SUCCESS;
}

// The structure of the first two versions has no long bus ID, and 16 bytes less.
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info) {
    nvmlPciInfo_t current;
    nvmlReturn_t result = info == NULL ? NVML_ERROR_INVALID_ARGUMENT : nvmlDeviceGetPciInfo_v3(device, &current);
    if (result == NVML_SUCCESS)
        memcpy(info, &current, offsetof(nvmlPciInfo_t, busId));
    return result;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *info) {
    return nvmlDeviceGetPciInfo_v2(device, info);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    nvmlReturn_t result = session_check(device, major);
    if (result != NVML_SUCCESS)
        return result;
    if (minor == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)device->image->compute_capability_major;
    *minor = (int)device->image->compute_capability_minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture) {
    static const struct {
        unsigned capability, architecture;
    } table[] = {{100, 10}, {90, 9}, {89, 8}, {80, 7}, {75, 6}, {70, 5}, {60, 4}, {50, 3}, {0, 2}};
    nvmlReturn_t result = session_check(device, architecture);
    if (result != NVML_SUCCESS)
        return result;
    unsigned capability = device->image->compute_capability_major * 10 + device->image->compute_capability_minor;
    unsigned row = 0;
    while (table[row].capability > capability)
        row++;
    *architecture = table[row].architecture;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned *brand) {
    nvmlReturn_t result = session_check(device, brand);
    if (result == NVML_SUCCESS)
        *brand = BRAND_NVIDIA;
    return result;
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node) {
    nvmlReturn_t result = session_check(device, node);
    if (result != NVML_SUCCESS)
        return result;
    if (device->image->numa_node < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned)device->image->numa_node;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode) {
    nvmlReturn_t result = session_check(device, mode);
    if (result == NVML_SUCCESS)
        *mode = device->image->compute_mode;
    return result;
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode) {
    nvmlReturn_t result = session_check_change(device, device);
    if (result == NVML_SUCCESS && (mode == COMPUTE_MODE_EXCLUSIVE_THREAD || mode > COMPUTE_MODE_EXCLUSIVE_PROCESS))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        device->image->compute_mode = mode;
    return result;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode) {
    nvmlReturn_t result = session_check(device, mode);
    if (result == NVML_SUCCESS)
        *mode = 1;
    return result;
}
