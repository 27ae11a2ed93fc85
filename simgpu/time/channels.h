/* In which order a process's launches are done. Each stream has a channel while it has work; the launches of a channel
 * are done one after another, those of different channels side by side. More streams than channels share them.
 *
 * A moment in this order is a mark: so many launches of a channel, or of a whole context, or of what the legacy default
 * stream waits for in a context, have ended. Zero is a mark that has always come.
 *
 * A channel's counters only grow, and each is written by one side: `given` by the process that launches, `done`, by
 * compare and swap, by whoever brings the GPU up to now. So a process that was stopped with the lock and goes on later
 * cannot bring a channel out of order. */
#ifndef SIMGPU_CHANNELS_H
#define SIMGPU_CHANNELS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "image/image.h"

/* How a stream stands to the legacy default stream of its context. */
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

/* The one that is done now, or next; NULL: the channel has none. */
static inline image_launch_t *channel_head(image_queue_t *queue, image_channel_t *channel) {
    uint64_t done = channel->done;
    return done < channel->queued ? &queue->launches[channel->launches[done % IMAGE_LAUNCHES]] : NULL;
}

bool mark_reached(image_queue_t *queue, uint64_t mark);
/* Whether a channel has something to do that belongs to the mark. */
bool mark_waits_for(image_queue_t *queue, uint64_t mark, unsigned channel);

/* Whether everything has come that the head of a channel waits for. */
bool channel_is_ready(image_queue_t *queue, const image_launch_t *head);

/* The head has ended. */
void channel_pop(image_queue_t *queue, image_channel_t *channel, const image_launch_t *head, uint64_t at_ns);

/* A new launch, behind the mark's if that is a channel's and has not come; everything else about it is for the caller
 * to say before `channel_push`. NULL: there is no room now. */
image_launch_t *channel_reserve(image_queue_t *queue, uint64_t behind, unsigned context, order_t order);
/* Returns its mark. */
uint64_t channel_push(image_queue_t *queue, image_launch_t *launch);

bool channels_have_work(image_queue_t *queue);
/* What nobody waits for any more. */
void channels_clear(image_queue_t *queue);

#endif
