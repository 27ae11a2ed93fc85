#include "time/usage.h"

#include <stdatomic.h>

#include "time/channels.h"

#define SECOND_NS 1000000000ull
#define BUCKET_NS (SECOND_NS / 4)
#define BUCKETS_PER_SECOND (SECOND_NS / BUCKET_NS)
#define BUCKETS_REMEMBERED (15 * BUCKETS_PER_SECOND)

/* A bucket is a quarter of a second: its number in the upper half, the busy nanoseconds in the lower half. With one
 * word, reusing a bucket for a later time and adding to it are one atomic step. */
static void bucket_add(_Atomic uint64_t *buckets, uint64_t number, uint64_t busy_ns) {
    _Atomic uint64_t *bucket = &buckets[number % IMAGE_BUCKETS];
    uint64_t old = *bucket;
    uint64_t new;
    do {
        uint64_t kept_ns = old >> 32 == (uint32_t)number ? old & UINT32_MAX : 0;
        new = (uint64_t)(uint32_t)number << 32 | (kept_ns + busy_ns);
    } while (!atomic_compare_exchange_weak(bucket, &old, new));
}

/* A long period without updates is cut to what the buckets can hold. */
void usage_add(_Atomic uint64_t *buckets, uint64_t start_ns, uint64_t end_ns) {
    uint64_t max_ns = (IMAGE_BUCKETS - 1) * BUCKET_NS;
    if (end_ns - start_ns > max_ns)
        start_ns = end_ns - max_ns;
    while (start_ns < end_ns) {
        uint64_t number = start_ns / BUCKET_NS;
        uint64_t until_ns = (number + 1) * BUCKET_NS < end_ns ? (number + 1) * BUCKET_NS : end_ns;
        bucket_add(buckets, number, until_ns - start_ns);
        start_ns = until_ns;
    }
}

static uint64_t within(uint64_t start_ns, uint64_t end_ns, uint64_t from_ns, uint64_t until_ns) {
    uint64_t first_ns = start_ns > from_ns ? start_ns : from_ns, last_ns = end_ns < until_ns ? end_ns : until_ns;
    return last_ns > first_ns ? last_ns - first_ns : 0;
}

/* The minimum run time of a process's queued work. Held work counts as a second, since its end is unknown. */
static uint64_t remaining_ns(const image_queue_t *queue) {
    uint64_t max_ns = 0, whole_ns = 0;
    for (unsigned c = 0; c < queue->channels_high; c++) {
        const image_channel_t *channel = &queue->channels[c];
        uint64_t row_ns = 0, queued = channel->queued;
        for (uint64_t position = channel->done; position < queued; position++) {
            const image_launch_t *launch = &queue->launches[channel->launches[position % IMAGE_LAUNCHES]];
            row_ns += launch->held && launch->begun && launch->percent > 0 ? SECOND_NS : launch->remaining_ns;
            whole_ns += launch->remaining_ns * launch->percent / 100;
        }
        max_ns = row_ns > max_ns ? row_ns : max_ns;
    }
    return whole_ns > max_ns ? whole_ns : max_ns;
}

/* Estimate the busy time since the last update as if the queues had run one after another. */
static uint64_t estimated_ns(const image_t *image, uint64_t from_ns, uint64_t until_ns) {
    uint64_t work_ns = 0;
    for (unsigned i = 0; i < image->slots_high; i++) {
        const image_queue_t *queue = image_queue(image, i);
        work_ns += queue->instance == 0 ? remaining_ns(queue) : 0;
    }
    uint64_t at_ns = image->schedule.at_ns;
    return within(at_ns, at_ns + work_ns, from_ns, until_ns);
}

/* The same for one process, which took turns with the others that have work. */
static uint64_t estimated_of_ns(const image_t *image, const image_queue_t *of, uint64_t from_ns, uint64_t until_ns) {
    unsigned busy = 0;
    for (unsigned i = 0; i < image->slots_high; i++)
        busy += channels_have_work(image_queue(image, i));
    uint64_t at_ns = image->schedule.at_ns;
    return busy > 0 ? within(at_ns, at_ns + remaining_ns(of) * busy, from_ns, until_ns) / busy : 0;
}

static uint64_t counted_ns(const _Atomic uint64_t *buckets, uint64_t first, uint64_t after) {
    uint64_t busy_ns = 0;
    for (uint64_t number = first; number < after; number++) {
        uint64_t bucket = buckets[number % IMAGE_BUCKETS];
        busy_ns += bucket >> 32 == (uint32_t)number ? bucket & UINT32_MAX : 0;
    }
    return busy_ns;
}

static unsigned percent_of(uint64_t busy_ns, uint64_t whole_ns) {
    uint64_t percent = busy_ns * 100 / whole_ns;
    return percent > 100 ? 100 : (unsigned)percent;
}

unsigned usage_percent(const image_t *image, uint64_t now_ns) {
    uint64_t after = now_ns / BUCKET_NS, first = after - BUCKETS_PER_SECOND;
    uint64_t estimated = estimated_ns(image, first * BUCKET_NS, after * BUCKET_NS);
    return percent_of(estimated + counted_ns(image->busy_buckets, first, after), SECOND_NS);
}

unsigned usage_percent_of_slot(const image_t *image, unsigned slot, uint64_t since_ns, uint64_t now_ns) {
    const image_queue_t *queue = image_queue(image, slot);
    if (queue->pid != image->slots[slot].pid || queue->start_ticks != image->slots[slot].start_ticks)
        return 0;
    uint64_t after = now_ns / BUCKET_NS, first = since_ns / BUCKET_NS;
    if (since_ns == 0 || first + BUCKETS_PER_SECOND > after)
        first = after - BUCKETS_PER_SECOND;
    else if (first + BUCKETS_REMEMBERED < after)
        first = after - BUCKETS_REMEMBERED;
    uint64_t estimated = estimated_of_ns(image, queue, first * BUCKET_NS, after * BUCKET_NS);
    return percent_of(estimated + counted_ns(queue->busy_buckets, first, after), (after - first) * BUCKET_NS);
}
