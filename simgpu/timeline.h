/* When kernels run on a GPU. The work of one process is a queue, done in the order of its launches; the queues of all
 * processes take turns, as contexts do on real hardware: a slice each, around and around, and every switch has a price.
 *
 * A moment of a queue is a mark: how many nanoseconds of work had been given to it. It has come when so much is done;
 * when that will be depends on what others launch until then, so nobody computes it. Whoever looks brings the GPU up to
 * now, by CLOCK_MONOTONIC, under a lock that a killed process cannot keep. One that is killed in the middle of that
 * costs somebody a slice at most. What a killed process had queued is gone when the next one looks, within a
 * millisecond.
 *
 * A kernel may be one of several that meet: it begins, keeps its GPU busy until as many of its process's GPUs have
 * begun theirs, and only then does its work. So the kernels of collectives wait for each other. */
#ifndef SIMGPU_TIMELINE_H
#define SIMGPU_TIMELINE_H

#include "gpus.h"

uint64_t timeline_now_ns(void);

/* Queue a kernel of this process, which has a slot; `meeting`: on how many GPUs it must have begun, 0 or 1 for others.
 * Returns the mark of its end. */
uint64_t timeline_queue(gpu_t *gpu, uint64_t duration_ns, unsigned meeting);

/* Whether a mark of this process's queue has come. */
bool timeline_reached(gpu_t *gpu, uint64_t mark_ns);
/* When it came, which was not long ago: some dozens of slices are remembered. */
uint64_t timeline_when_ns(gpu_t *gpu, uint64_t mark_ns);
void timeline_wait(gpu_t *gpu, uint64_t mark_ns);

/* Sleep until then; returns at once for a time that has passed. */
void timeline_sleep(uint64_t until_ns);

#endif
