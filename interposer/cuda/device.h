/* Maps CUDA's device numbers to the share's records, by UUID. Numbers differ between processes; UUIDs do not. */
#ifndef GPUSHARE_DEVICE_H
#define GPUSHARE_DEVICE_H

#include <stdbool.h>

#include "driver/hooks.h"

/* On success `*gpu_p` is the record's index, or SHARE_NO_GPU if the share does not include this GPU. */
CUresult device_gpu(CUdevice device, uint32_t *gpu_p);

/* The same for the calling thread's current device. */
CUresult device_current(uint32_t *gpu_p);

/* The same for a context's device; the context need not be current. */
CUresult device_of_context(CUcontext context, uint32_t *gpu_p);

/* Return CUDA_ERROR_NOT_PERMITTED for the current device, which is not part of the share, and report the reason once
 * per device. */
CUresult device_refusal(void);

typedef struct {
    uint32_t gpu;
    CUcontext context; /* the memory ends with it; NULL: it outlives contexts */
    bool deferred;     /* the driver may allocate after the call has returned, or allocate less */
} place_t;

/* Where the calling thread would allocate. */
CUresult device_place(place_t *place);

/* Returns false if the location is not on a device. */
bool device_of_location(const CUmemLocation *location, CUdevice *device);

#endif
