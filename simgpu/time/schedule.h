/* Which process has a GPU, and how fast its kernels run. Advances the state to a given time, from the work that was
 * queued before. Takes no locks and reads no clock.
 *
 * Processes take turns in time slices, round-robin; all clients of an MPS server count as one process. Each switch
 * takes time. The process whose turn it is has the whole GPU. Its ready kernels get their percentages first come, first
 * served: each gets what it asks for, or the rest, and then runs slower accordingly. A process never gets more than
 * its own percentage. A fault ends all clients of an MPS server. */
#ifndef SIMGPU_SCHEDULE_H
#define SIMGPU_SCHEDULE_H

#include "image/image.h"

#define SCHEDULE_SLICE_NS 2000000ull

/* `instance`: the GPU instance, as id + 1; 0: the whole GPU. */
void schedule_advance(image_t *image, uint64_t instance, image_schedule_t *schedule, uint64_t now_ns);

/* Return when to check again whether a queue has reached a mark or, if the mark is 0, whether any of its launches
 * has ended. Unless something is launched or released before, that is never later than it happens. UINT64_MAX: only
 * a launch or a release can bring it about. */
uint64_t schedule_next_poll_ns(image_t *image, uint64_t instance, const image_schedule_t *schedule, unsigned index,
                               uint64_t mark);

#endif
