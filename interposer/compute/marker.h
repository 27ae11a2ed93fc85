/* Checks whether a GPU still runs work of this process, by an event after all work of each context. Before CUDA 12.5
 * there is no such event, and it would break a capture; then each stream gets one.
 *
 * For the helper thread, except for the functions about contexts. A broken context runs nothing. */
#ifndef GPUSHARE_MARKER_H
#define GPUSHARE_MARKER_H

#include <stdbool.h>

#include "driver/hooks.h"

/* Add a context on this GPU; no-op if it is known. From any thread. */
void marker_add(CUcontext context, uint32_t gpu);

/* Whether the context is known, and its GPU. */
bool marker_find(CUcontext context, uint32_t *gpu_p);

/* Around a call that may end the context. Until drop or resume, it is not queried and counts as running. */
void marker_suspend(CUcontext context);
void marker_drop(CUcontext context);
void marker_resume(CUcontext context);

/* Note that threads launch in their own default streams, which other threads cannot query. */
void marker_use_thread_streams(void);

/* Called at exit: make no further calls to the driver, and wait for the one in progress. */
void marker_stop(void);

/* Called when a capture begins: wait until the helper's call to the driver has returned, for a limited time. */
void marker_wait_idle(void);

/* Mark all work launched on the GPU so far. */
void marker_record(uint32_t gpu);

/* Whether all marked work has ended. */
bool marker_is_done(uint32_t gpu);

/* Whether some work could not be marked and may still run. */
bool marker_has_missed(uint32_t gpu);

#endif
