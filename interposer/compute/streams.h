/* The streams that the program has created, each with an event to query whether its work has ended. They are
 * used where a context cannot be queried as a whole: before CUDA 12.5, and during captures.
 *
 * The lock protects the list only and is never held across a call to the driver. A thread claims the stream that it
 * queries, and a thread that destroys the stream waits for the claim. */
#ifndef GPUSHARE_STREAMS_H
#define GPUSHARE_STREAMS_H

#include <stdbool.h>

#include "driver/hooks.h"

/* After a stream's creation, before a capture begins in it, and around its destruction. */
void streams_add(CUstream stream);
void streams_capture(CUstream stream);
typedef struct streams_slot streams_slot_t;
streams_slot_t *streams_begin_destroy(CUstream stream);
void streams_end_destroy(streams_slot_t *slot, CUstream stream, bool ended);

/* Whether streams are queried now instead of contexts. */
bool streams_are_polled(void);

/* Return the number of streams on that GPU. */
unsigned streams_count(uint32_t gpu);

/* Around a call that may end a context. Until drop or resume, its streams are not queried. */
void streams_suspend(CUcontext context);
void streams_drop(CUcontext context);
void streams_resume(CUcontext context);

/* For the helper thread. Mark the work of the GPU's streams so far. Returns false if a stream cannot be marked,
 * because it has joined a capture that began in another stream. */
bool streams_mark(uint32_t gpu);

/* Whether all marked work has ended. */
bool streams_are_done(uint32_t gpu);

#endif
