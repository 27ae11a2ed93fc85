/* The streams that the program has made, and an event in each: whether they still run what they were given, where that
 * cannot be asked of their context as a whole. That is before CUDA 12.5, and while anything is being captured.
 *
 * The lock is held for the list only, never across a call to the driver: who asks about a stream claims it, and who
 * ends it waits for that. */
#ifndef GPUSHARE_STREAMS_H
#define GPUSHARE_STREAMS_H

#include <stdbool.h>

#include "driver/hooks.h"

/* After a stream was made, before a capture begins in it, and around its end. */
void streams_add(CUstream stream);
void streams_capture(CUstream stream);
typedef struct streams_slot streams_slot_t;
streams_slot_t *streams_begin_destroy(CUstream stream);
void streams_end_destroy(streams_slot_t *slot, CUstream stream, bool ended);

/* Whether the streams are asked now, and not their contexts as a whole. */
bool streams_are_polled(void);

/* How many there are on that GPU. */
unsigned streams_count(uint32_t gpu);

/* The streams of a context are left alone; then they end with it, or are asked about again. */
void streams_suspend(CUcontext context);
void streams_drop(CUcontext context);
void streams_resume(CUcontext context);

/* For the helper thread. Marks what was given to the streams of a GPU until now. False: one of them cannot be marked,
 * because a capture has got to it that did not begin in it. */
bool streams_mark(uint32_t gpu);

/* True: all that was marked has ended. */
bool streams_are_done(uint32_t gpu);

#endif
