/* When kernels run on a GPU: one after another, for all processes together, in the order of their launch.
 *
 * Times are CLOCK_MONOTONIC nanoseconds. A launch is one compare-and-swap, so a process killed at any instant leaves
 * the timeline whole. What it had queued stays queued, which real hardware would drop. */
#ifndef SIMGPU_TIMELINE_H
#define SIMGPU_TIMELINE_H

#include "image.h"

uint64_t timeline_now_ns(void);

/* Queue a kernel that may start at `earliest_ns`; returns when it will have ended. `busy_until_ns_p`: the timeline, the
 * GPU's or an instance's. */
uint64_t timeline_queue(image_t *image, _Atomic uint64_t *busy_until_ns_p, uint64_t earliest_ns, uint64_t duration_ns);

/* How much of the last second kernels ran. */
unsigned timeline_busy_percent(const image_t *image);

/* Sleep until then; returns at once for a time that has passed. */
void timeline_wait(uint64_t until_ns);

#endif
