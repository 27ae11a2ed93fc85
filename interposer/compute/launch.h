/* The steps before a launch enters the driver: it is counted, waits at its GPU's gate, and is limited in how far it
 * runs ahead. Also the contexts in which launches can happen. */
#ifndef GPUSHARE_LAUNCH_H
#define GPUSHARE_LAUNCH_H

#include <stdbool.h>

#include "driver/hooks.h"

/* Called before a launch in this stream. It runs on the stream's GPU; in a default stream, on the current context's.
 * A result other than CUDA_SUCCESS is the launch's result. `multi_device`: it launches on other devices too. */
CUresult launch_admit(CUstream stream, bool multi_device);

/* A context was created on this device, so its gate counts from now on. */
void launch_add_context(CUcontext context, CUdevice device);

/* The same for a context whose handle is unknown. */
void launch_add_device(CUdevice device);

#endif
