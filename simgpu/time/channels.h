/* The order of a process's launches. Each stream has a channel while it has work. Launches in a channel run one
 * after another, those in different channels side by side. If there are more streams than channels, streams share
 * them.
 *
 * A mark is a moment in this order: it is reached when all launches up to a number have ended, in a channel, in a
 * context, or among those that the legacy default stream of a context waits for. A mark of 0 is always reached.
 *
 * A channel's counters only grow, and each has one kind of writer: the process that launches writes `queued`; the
 * process that advances the GPU's time writes `done`, by compare and swap. So a process that was stopped while it
 * held the lock cannot break a channel's order when it continues. */
#ifndef SIMGPU_CHANNELS_H
#define SIMGPU_CHANNELS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "image/image.h"

/* How a stream relates to the legacy default stream of its context. */
typedef enum { ORDER_LEGACY, ORDER_BLOCKING, ORDER_NON_BLOCKING } order_t;

typedef enum { MARK_CHANNEL, MARK_CONTEXT, MARK_BLOCKING, MARK_LEGACY } mark_scope_t;

static inline uint64_t mark_make(mark_scope_t scope, unsigned index, uint64_t number) {
    return number == 0 ? 0 : number << 9 | (uint64_t)scope << 7 | index;
}
static inline uint64_t mark_number(uint64_t mark) {
    return mark >> 9;
}
static inline mark_scope_t mark_scope(uint64_t mark) {
    return (mark_scope_t)(mark >> 7 & 3);
}
static inline unsigned mark_index(uint64_t mark) {
    return mark & 127;
}

/* The launch that runs now or next; NULL: the channel is empty. */
static inline image_launch_t *channel_head(image_queue_t *queue, image_channel_t *channel) {
    uint64_t done = channel->done;
    return done < channel->queued ? &queue->launches[channel->launches[done % IMAGE_LAUNCHES]] : NULL;
}

bool mark_reached(image_queue_t *queue, uint64_t mark);
/* Whether a channel still has launches that the mark waits for. */
bool mark_waits_for(image_queue_t *queue, uint64_t mark, unsigned channel);

/* Whether everything that the head of a channel waits for is done. */
bool channel_is_ready(image_queue_t *queue, const image_launch_t *head);

/* Remove the head, which has ended. */
void channel_pop(image_queue_t *queue, image_channel_t *channel, const image_launch_t *head, uint64_t at_ns);

/* Return a new launch, in the same channel as the mark `behind` if that is a channel's and not reached. The caller
 * fills in the rest before `channel_push`. NULL: there is no free launch now. */
image_launch_t *channel_reserve(image_queue_t *queue, uint64_t behind, unsigned context, order_t order);
/* Queue the launch. Returns its mark. */
uint64_t channel_push(image_queue_t *queue, image_launch_t *launch);

bool channels_have_work(image_queue_t *queue);
/* Drop all queued launches of a dead process. */
void channels_clear(image_queue_t *queue);

#endif
