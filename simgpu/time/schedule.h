/* Who runs on a GPU, and how fast: what has happened up to a moment, worked out from what was launched until then. No
 * locks and no clock.
 *
 * Processes take turns, all clients of MPS together as one of them: a slice each, around and around, and every switch
 * has a price. Whoever has the turn has the whole GPU. It is handed out to those of its kernels whose streams have come
 * to them, first come, first served: each gets its part, or what is left, and is so much slower. A process never gets
 * more than its percentage. */
#ifndef SIMGPU_SCHEDULE_H
#define SIMGPU_SCHEDULE_H

#include "image/image.h"

#define SCHEDULE_SLICE_NS 2000000ull

/* `instance`: which GPU instance, by id + 1; 0: the whole GPU. */
void schedule_advance(image_t *image, uint64_t instance, image_schedule_t *schedule, uint64_t now_ns);

/* When it is worth to look again whether a mark of a queue has come, or with 0, whether anything of it has ended: never
 * later than it can have come, unless something is launched or released until then. UINT64_MAX: only that can bring it.
 */
uint64_t schedule_next_poll_ns(image_t *image, uint64_t instance, const image_schedule_t *schedule, unsigned index,
                               uint64_t mark);

#endif
