/* From CUDA's numbers to the share's records. A number means different GPUs in different processes; a UUID does not. */
#ifndef GPUSHARE_DEVICE_H
#define GPUSHARE_DEVICE_H

#include <stdbool.h>

#include "driver/hooks.h"

/* SUCCESS: `*gpu_p` is the record, or SHARE_NO_GPU when the share has none of this GPU. */
CUresult device_gpu(CUdevice device, uint32_t *gpu_p);

/* The same for the calling thread's current device. */
CUresult device_current(uint32_t *gpu_p);

/* The same for a context's device, whichever is current. */
CUresult device_of_context(CUcontext context, uint32_t *gpu_p);

/* NOT_PERMITTED: the share has nothing of the calling thread's current device; why is said once a process and device.
 */
CUresult device_refusal(void);

typedef struct {
    uint32_t gpu;
    CUcontext context; /* that the memory ends with; NULL: it outlives contexts */
    bool deferred;     /* the driver may take it later than the call returns, or less of it */
} place_t;

/* Where an allocation of the calling thread would be. */
CUresult device_place(place_t *place);

/* False: the location is not on a device. */
bool device_of_location(const CUmemLocation *location, CUdevice *device);

#endif
