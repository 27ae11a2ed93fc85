/* Whether a GPU still runs work of this process: an event after everything that each context was given. Where the
 * driver has none (before CUDA 12.5), and while anything is captured, which it would break, an event in each stream.
 *
 * For the helper thread, but for what is told about contexts. A context that is broken runs nothing. */
#ifndef GPUSHARE_MARKER_H
#define GPUSHARE_MARKER_H

#include <stdbool.h>

#include "driver/hooks.h"

/* There is this context on that GPU; from any thread, as often as one likes. */
void marker_add(CUcontext context, uint32_t gpu);

/* Whether it has been told of, and on which GPU it is. */
bool marker_find(CUcontext context, uint32_t *gpu_p);

/* Around a call that may end it: before, and then one of the others. Meanwhile it is left alone, and taken to run. */
void marker_suspend(CUcontext context);
void marker_drop(CUcontext context);
void marker_resume(CUcontext context);

/* Threads launch in default streams of their own, which nobody else can ask about. */
void marker_use_thread_streams(void);

/* The process exits: from now on the driver is asked nothing, and what is being asked has been answered. */
void marker_stop(void);

/* A capture begins: what the helper is asking the driver has been answered, or it takes very long. */
void marker_wait_idle(void);

/* Marks all that has been launched on the GPU until now. */
void marker_record(uint32_t gpu);

/* True: all that was marked has ended. */
bool marker_is_done(uint32_t gpu);

/* Something could not be marked, and may run still. */
bool marker_has_missed(uint32_t gpu);

#endif
