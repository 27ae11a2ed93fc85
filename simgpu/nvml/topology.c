/* Topology: a GPU's processors and memory, its links to other GPUs, and the NVLink fabric of several nodes. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml/sensors.h"
#include "nvml/session.h"

#define BITS (8 * (unsigned)sizeof(unsigned long))
#define SCOPE_SOCKET 1u

static void set_range(unsigned long *words, unsigned count, unsigned first, unsigned last) {
    for (unsigned i = first; i <= last && i / BITS < count; i++)
        words[i / BITS] |= 1ul << i % BITS;
}

/* Set the host's processors on a NUMA node, listed as `0-3,8-11`. False: there is no such node. */
static bool set_node_cpus(int node, unsigned long *words, unsigned count) {
    char path[64];
    unsigned first, last;
    int separator = ',';
    (void)snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    FILE *file = node >= 0 ? fopen(path, "re") : NULL;
    if (file == NULL)
        return false;
    while (separator == ',' && fscanf(file, "%u", &first) == 1) {
        if (fscanf(file, "-%u", &last) != 1)
            last = first;
        set_range(words, count, first, last);
        separator = fgetc(file);
    }
    fclose(file);
    return true;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *cpus) {
    nvmlReturn_t result = nvml_check_gpu(device, cpus);
    if (result == NVML_SUCCESS && words == 0)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    memset(cpus, 0, words * sizeof *cpus);
    if (!set_node_cpus(device->image->numa_node, cpus, words))
        set_range(cpus, words, 0, (unsigned)sysconf(_SC_NPROCESSORS_CONF) - 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *cpus,
                                                 unsigned scope) {
    return scope > SCOPE_SOCKET ? NVML_ERROR_INVALID_ARGUMENT : nvmlDeviceGetCpuAffinity(device, words, cpus);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *nodes, unsigned scope) {
    nvmlReturn_t result = nvml_check_gpu(device, nodes);
    if (result == NVML_SUCCESS && (words == 0 || scope > SCOPE_SOCKET))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    memset(nodes, 0, words * sizeof *nodes);
    unsigned node = device->image->numa_node > 0 ? (unsigned)device->image->numa_node : 0;
    set_range(nodes, words, node, node);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    nvmlReturn_t result = nvml_check_gpu(device, info);
    if (result != NVML_SUCCESS)
        return result;
    static const uint8_t nowhere[16];
    const image_t *image = device->image;
    *info = (nvmlGpuFabricInfo_t){.state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED};
    if (memcmp(image->fabric_uuid_bytes, nowhere, sizeof nowhere) == 0)
        return NVML_SUCCESS;
    memcpy(info->clusterUuid, image->fabric_uuid_bytes, sizeof info->clusterUuid);
    info->cliqueId = image->fabric_clique;
    info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info) {
    nvmlGpuFabricInfo_t found;
    nvmlReturn_t result = nvml_check_gpu(device, info);
    if (result != NVML_SUCCESS)
        return result;
    if (info->version != NVML_GPU_FABRIC_INFO_V2 && info->version != NVML_GPU_FABRIC_INFO_V3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    result = nvmlDeviceGetGpuFabricInfo(device, &found);
    memcpy(info->clusterUuid, found.clusterUuid, sizeof info->clusterUuid);
    info->status = found.status;
    info->cliqueId = found.cliqueId;
    info->state = found.state;
    info->healthMask = 0; /* each item: not supported */
    if (info->version == NVML_GPU_FABRIC_INFO_V3)
        info->healthSummary = 0;
    return result;
}

static nvmlReturn_t check_pair(nvmlDevice_t left, nvmlDevice_t right, const void *output) {
    nvmlReturn_t result = session_check(left, output);
    return result == NVML_SUCCESS ? session_check(right, output) : result;
}

static bool linked(const gpu_t *left, const gpu_t *right) {
    return (left->image->nvlink_peers >> right->image->node_index & 1) != 0;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t left, nvmlDevice_t right, unsigned *level) {
    nvmlReturn_t result = check_pair(left, right, level);
    if (result != NVML_SUCCESS)
        return result;
    const image_t *a = left->image, *b = right->image;
    if (left == right)
        *level = NVML_TOPOLOGY_INTERNAL;
    else if (a->pci_switch != IMAGE_NO_SWITCH && a->pci_switch == b->pci_switch)
        *level = NVML_TOPOLOGY_SINGLE;
    else
        *level = a->numa_node == b->numa_node ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t left, nvmlDevice_t right, unsigned index, unsigned *status) {
    nvmlReturn_t result = check_pair(left, right, status);
    if (result != NVML_SUCCESS)
        return result;
    bool near = linked(left, right);
    if (index != NVML_P2P_CAPS_INDEX_NVLINK)
        near = near || left->image->numa_node == right->image->numa_node;
    *status = near ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* Number the links by visible peer, one link per peer. */
static nvmlDevice_t link_peer(nvmlDevice_t device, unsigned link) {
    unsigned count;
    const gpu_t *gpus = session_gpus(&count);
    for (unsigned i = 0; i < count; i++) {
        if (linked(device, &gpus[i]) && link-- == 0)
            return (nvmlDevice_t)&gpus[i];
    }
    return NULL;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active) {
    nvmlReturn_t result = session_check(device, active);
    if (result != NVML_SUCCESS)
        return result;
    if (device->image->nvlink_peers == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *active = link_peer(device, link) != NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *info) {
    nvmlReturn_t result = session_check(device, info);
    if (result != NVML_SUCCESS)
        return result;
    nvmlDevice_t peer = link_peer(device, link);
    return peer == NULL ? NVML_ERROR_NOT_SUPPORTED : nvmlDeviceGetPciInfo_v3(peer, info);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *info) {
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, info);
}
