/* The state between nvmlInit and nvmlShutdown: the GPUs found by the first nvmlInit. */
#ifndef SIMGPU_NVML_SESSION_H
#define SIMGPU_NVML_SESSION_H

#include "nvml/abi.h"

/* Return the GPUs; NULL before nvmlInit. */
const gpu_t *session_gpus(unsigned *count_p);

/* Check the arguments of a call on a device: NVML is initialized, the handle is valid, the GPU works. Does not
 * return while the GPU hangs. */
nvmlReturn_t session_check(nvmlDevice_t device, const void *output);

/* The same for calls that change a GPU: it must be writable, and not a MIG device. */
nvmlReturn_t session_check_change(nvmlDevice_t device, const void *output);

/* Return the handle of a MIG device. Ids are below SESSION_IDS. */
#define SESSION_IDS 16u
nvmlDevice_t session_mig(nvmlDevice_t gpu, unsigned instance_id, unsigned compute_id);
nvmlDevice_t session_parent(nvmlDevice_t device);

nvmlReturn_t session_copy(const char *text, char *output, unsigned length);

#endif
