#include "time/channels.h"

static bool is_in(const image_channel_t *channel, uint64_t mark) {
    if (mark_scope(mark) == MARK_CHANNEL || channel->context != mark_index(mark))
        return false;
    return mark_scope(mark) == MARK_CONTEXT ||
           (mark_scope(mark) == MARK_LEGACY ? channel->order == ORDER_LEGACY : channel->order != ORDER_NON_BLOCKING);
}

static bool is_past(image_queue_t *queue, image_channel_t *channel, uint64_t number) {
    const image_launch_t *head = channel_head(queue, channel);
    return head == NULL || head->number > number;
}

bool mark_waits_for(image_queue_t *queue, uint64_t mark, unsigned index) {
    image_channel_t *channel = &queue->channels[index];
    bool within = mark_scope(mark) == MARK_CHANNEL ? index == mark_index(mark) : is_in(channel, mark);
    return within && !is_past(queue, channel, mark_number(mark));
}

bool mark_reached(image_queue_t *queue, uint64_t mark) {
    if (mark_scope(mark) == MARK_CHANNEL)
        return mark == 0 || is_past(queue, &queue->channels[mark_index(mark)], mark_number(mark));
    for (unsigned i = 0; i < queue->channels_high; i++) {
        if (mark_waits_for(queue, mark, i))
            return false;
    }
    return true;
}

/* The legacy default stream waits for all blocking streams of its context, and they wait for it. */
bool channel_is_ready(image_queue_t *queue, const image_launch_t *head) {
    if (head->ready_ns != 0)
        return true;
    if (!mark_reached(queue, head->after))
        return false;
    if (head->order == ORDER_NON_BLOCKING)
        return true;
    mark_scope_t before = head->order == ORDER_LEGACY ? MARK_BLOCKING : MARK_LEGACY;
    return mark_reached(queue, mark_make(before, head->context, head->number - 1));
}

void channel_pop(image_queue_t *queue, image_channel_t *channel, const image_launch_t *head, uint64_t at_ns) {
    uint64_t position = head->position;
    queue->ended_ns[head->number % IMAGE_ENDS] = at_ns;
    (void)atomic_compare_exchange_strong(&channel->done, &position, position + 1);
}

static bool is_free(const image_queue_t *queue, const image_launch_t *launch) {
    return launch->number == 0 || queue->channels[launch->channel].done > launch->position;
}

static image_launch_t *find_free(image_queue_t *queue) {
    for (unsigned i = 0; i < IMAGE_LAUNCHES; i++) {
        image_launch_t *launch = &queue->launches[(queue->next + i) % IMAGE_LAUNCHES];
        if (!is_free(queue, launch))
            continue;
        queue->next = (queue->next + i + 1) % IMAGE_LAUNCHES;
        return launch;
    }
    return NULL;
}

static bool is_idle(const image_channel_t *channel) {
    return channel->done == channel->queued;
}

/* Use an idle channel, or else the shortest one of the same context and order. Sharing a channel only adds order,
 * which is always correct. */
static image_channel_t *find_channel(image_queue_t *queue, unsigned context, order_t order) {
    image_channel_t *shared = NULL;
    for (unsigned i = 0; i < IMAGE_CHANNELS; i++) {
        image_channel_t *channel = &queue->channels[i];
        if (is_idle(channel)) {
            channel->context = (uint8_t)context;
            channel->order = (uint8_t)order;
            queue->channels_high = i >= queue->channels_high ? i + 1 : queue->channels_high;
            return channel;
        }
        if (channel->context == context && channel->order == order &&
            (shared == NULL || channel->queued - channel->done < shared->queued - shared->done))
            shared = channel;
    }
    return shared;
}

image_launch_t *channel_reserve(image_queue_t *queue, uint64_t behind, unsigned context, order_t order) {
    bool waits = behind != 0 && mark_scope(behind) == MARK_CHANNEL && !mark_reached(queue, behind);
    image_channel_t *channel = waits ? &queue->channels[mark_index(behind)] : find_channel(queue, context, order);
    image_launch_t *launch = channel != NULL ? find_free(queue) : NULL;
    if (launch == NULL)
        return NULL;
    *launch = (image_launch_t){.position = channel->queued,
                               .channel = (uint8_t)(channel - queue->channels),
                               .context = (uint8_t)context,
                               .order = (uint8_t)order};
    return launch;
}

uint64_t channel_push(image_queue_t *queue, image_launch_t *launch) {
    image_channel_t *channel = &queue->channels[launch->channel];
    launch->number = ++queue->number;
    channel->launches[launch->position % IMAGE_LAUNCHES] = (uint16_t)(launch - queue->launches);
    atomic_store_explicit(&channel->queued, launch->position + 1, memory_order_release);
    return mark_make(MARK_CHANNEL, launch->channel, launch->number);
}

bool channels_have_work(image_queue_t *queue) {
    for (unsigned i = 0; i < queue->channels_high; i++) {
        if (!is_idle(&queue->channels[i]))
            return true;
    }
    return false;
}

void channels_clear(image_queue_t *queue) {
    for (unsigned i = 0; i < queue->channels_high; i++)
        queue->channels[i].done = (uint64_t)queue->channels[i].queued;
}
