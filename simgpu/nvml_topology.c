/* How near two GPUs are to each other. */
#include "nvml_session.h"

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

/* Links are numbered over the peers that this process sees, one link each. */
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
