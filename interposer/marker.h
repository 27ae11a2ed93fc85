/* Whether a GPU still runs work of this process: an event after everything that each context was given.
 *
 * For the helper thread, but for what is told about contexts. A context that is going away, or is broken, runs nothing.
 */
#ifndef GPUSHARE_MARKER_H
#define GPUSHARE_MARKER_H

#include <stdbool.h>

#include "hooks.h"

/* There is this context on that GPU; from any thread, as often as one likes. */
void marker_context(CUcontext context, uint32_t gpu);

/* Before the real call that ends it. */
void marker_forget(CUcontext context);

/* Marks all that has been launched on the GPU until now. */
void marker_record(uint32_t gpu);

/* True: all that was marked has ended. */
bool marker_done(uint32_t gpu);

#endif
