/* What a launch does before it goes to the driver: it is counted, waits at the gate of its GPU, and does not run far
 * ahead. And what may launch: the contexts. */
#ifndef GPUSHARE_LAUNCH_H
#define GPUSHARE_LAUNCH_H

#include <stdbool.h>

#include "driver/hooks.h"

/* Before a launch in this stream, by the calling thread: on the GPU that the stream is on, in a default stream on that
 * of the current context. What is not SUCCESS is the launch's result. `multi_device`: it launches on other devices as
 * well.
 */
CUresult launch_admit(CUstream stream, bool multi_device);

/* There is a context on this device: from now on there may be work there, and its gate counts. */
void launch_add_context(CUcontext context, CUdevice device);

/* There may be work on this device, of a context that is unknown. */
void launch_add_device(CUdevice device);

#endif
