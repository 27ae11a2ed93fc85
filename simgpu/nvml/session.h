/* The state between nvmlInit and nvmlShutdown: the GPUs that were there at the first nvmlInit. */
#ifndef SIMGPU_NVML_SESSION_H
#define SIMGPU_NVML_SESSION_H

#include "nvml/abi.h"

/* NULL before nvmlInit. */
const gpu_t *session_gpus(unsigned *count_p);

/* What every call on a device begins with: initialised, a handle that is one, and a GPU that answers. */
nvmlReturn_t session_check(nvmlDevice_t device, const void *output);

/* For calls that change the GPU: one that may be written to, and is no MIG device. */
nvmlReturn_t session_check_change(nvmlDevice_t device, const void *output);

/* The handle of a MIG device; ids are below SESSION_IDS. */
#define SESSION_IDS 16u
nvmlDevice_t session_mig(nvmlDevice_t gpu, unsigned instance_id, unsigned compute_id);
nvmlDevice_t session_parent(nvmlDevice_t device);

nvmlReturn_t session_copy(const char *text, char *output, unsigned length);

#endif
