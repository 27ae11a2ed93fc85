/* Where the work of a stream is done, and when. */
#ifndef GPUSHARE_STREAM_H
#define GPUSHARE_STREAM_H

#include <stdbool.h>

#include "cuda/device.h"

/* Whether it is one that a program has made, and no default stream. */
static inline bool stream_is_handle(CUstream stream) {
    return stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

/* The device of a stream, which may be another than the current one. The place outlives contexts. */
CUresult stream_place(CUstream stream, place_t *place, CUdevice *device);

/* `per_thread`: what the handle 0 means. */
bool stream_is_capturing(CUstream stream, bool per_thread);

/* Until the current context has done all that it was given, for up to a second; if the driver cannot be asked that,
 * then until the stream has. */
void stream_wait(CUstream stream, bool per_thread);

#endif
