/* When kernels run on a GPU. The work of each process is a queue that all of them see; in which order it is done says
 * channels.h, and who has the GPU when turns.h.
 *
 * When something will have ended depends on what others launch until then, so nobody computes it, and nobody schedules.
 * Whoever looks brings the GPU up to now, by CLOCK_MONOTONIC, under a lock that a killed process cannot keep. One that
 * is killed in the middle of that costs somebody a slice at most. What a killed process had queued is gone when the
 * next one looks, within a millisecond. */
#ifndef SIMGPU_TIMELINE_H
#define SIMGPU_TIMELINE_H

#include "image/gpus.h"
#include "time/channels.h"

/* What a process gives to the GPU to do. `held`: it begins, keeps its part of the GPU busy, and does its work only when
 * it has been released. A percent of 0: it takes no part of the GPU, and its turn in its stream is all that matters. */
typedef struct {
    uint64_t duration_ns;
    unsigned percent;
    bool held;
    uint64_t after; /* a mark of the same process and GPU that has to come first; 0: none */
    unsigned context;
    order_t order;
} gpu_work_t;

/* Queue work of this process, which has a slot, behind the mark of its stream's end, which moves; when there is room.
 * Returns the mark of its own end. */
uint64_t timeline_queue(gpu_t *gpu, _Atomic uint64_t *stream, const gpu_work_t *work);

/* Whether something held has begun: only then it may be released. If not, when to ask again: soon at the latest. */
bool timeline_has_begun(gpu_t *gpu, uint64_t mark, uint64_t *again_ns_p);
void timeline_release(gpu_t *gpu, uint64_t mark);

/* Whether a mark of this process's queue has come. */
bool timeline_reached(gpu_t *gpu, uint64_t mark);
/* When it came, which was not long ago: the last 4,096 launches are remembered. */
uint64_t timeline_ended_ns(gpu_t *gpu, uint64_t mark);
void timeline_wait(gpu_t *gpu, uint64_t mark);

#endif
