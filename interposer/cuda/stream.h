/* Where a stream's work runs, and when it has ended. */
#ifndef GPUSHARE_STREAM_H
#define GPUSHARE_STREAM_H

#include <stdbool.h>

#include "cuda/device.h"

/* Whether the program created the stream (it is not a default stream). */
static inline bool stream_is_handle(CUstream stream) {
    return stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

/* Return the stream's device, which need not be the current one. The place outlives contexts. */
CUresult stream_place(CUstream stream, place_t *place, CUdevice *device);

/* `per_thread`: handle 0 is the thread's own default stream. */
bool stream_is_capturing(CUstream stream, bool per_thread);

/* Wait up to a second until all work of the current context has ended, or, if the driver cannot tell, all work of
 * the stream. */
void stream_wait(CUstream stream, bool per_thread);

#endif
