/* Who runs on a GPU, and how fast: what has happened up to a moment, worked out from what was launched until then. No
 * locks and no clock.
 *
 * Processes take turns, all clients of MPS together as one of them: a slice each, around and around, and every switch
 * has a price. Whoever has the turn has the whole GPU. It is handed out to those of its kernels whose streams have come
 * to them, first come, first served: each gets its part, or what is left, and is so much slower. A process never gets
 * more than its percentage. */
#ifndef SIMGPU_TURNS_H
#define SIMGPU_TURNS_H

#include "image.h"

#define TURNS_SLICE_NS 2000000ull

/* `instance`: which GPU instance, by id + 1; 0: the whole GPU. */
void turns_advance(image_t *image, uint64_t instance, image_line_t *line, uint64_t now_ns);

/* When it is worth to look again whether a mark of a queue has come, or with 0, whether anything of it has ended: never
 * later than it can have come, unless something is launched or released until then. UINT64_MAX: only that can bring it.
 */
uint64_t turns_look_again_ns(image_t *image, uint64_t instance, const image_line_t *line, unsigned index,
                             uint64_t mark);

#endif
