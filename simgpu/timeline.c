#define _GNU_SOURCE
#include "timeline.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#define SECOND_NS 1000000000ull
#define BUCKET_NS (SECOND_NS / 4)
#define BUCKETS_PER_SECOND (SECOND_NS / BUCKET_NS)

uint64_t timeline_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

/* A bucket is a quarter of a second: its number in the upper half, the busy nanoseconds in it in the lower. One word,
 * so that a bucket's reuse for a later time and its first addition are one step. */
static void bucket_add(_Atomic uint64_t *buckets, uint64_t number, uint64_t busy_ns) {
    _Atomic uint64_t *bucket = &buckets[number % IMAGE_BUCKETS];
    uint64_t old = *bucket;
    uint64_t new;
    do {
        uint64_t kept_ns = old >> 32 == (uint32_t)number ? old & UINT32_MAX : 0;
        new = (uint64_t)(uint32_t)number << 32 | (kept_ns + busy_ns);
    } while (!atomic_compare_exchange_weak(bucket, &old, new));
}

static void account(image_t *image, uint64_t start_ns, uint64_t end_ns) {
    /* Work queued further ahead than the ring is long is left out: utilisation looks back one second only. */
    uint64_t horizon_ns = timeline_now_ns() + (IMAGE_BUCKETS - BUCKETS_PER_SECOND - 1) * BUCKET_NS;
    if (end_ns > horizon_ns)
        end_ns = horizon_ns;
    while (start_ns < end_ns) {
        uint64_t number = start_ns / BUCKET_NS;
        uint64_t until_ns = (number + 1) * BUCKET_NS < end_ns ? (number + 1) * BUCKET_NS : end_ns;
        bucket_add(image->busy_buckets, number, until_ns - start_ns);
        start_ns = until_ns;
    }
}

uint64_t timeline_queue(image_t *image, _Atomic uint64_t *busy_until_ns_p, uint64_t earliest_ns, uint64_t duration_ns) {
    uint64_t busy_until_ns = *busy_until_ns_p;
    uint64_t now_ns = timeline_now_ns();
    uint64_t start_ns;
    if (earliest_ns < now_ns)
        earliest_ns = now_ns;
    do {
        start_ns = busy_until_ns > earliest_ns ? busy_until_ns : earliest_ns;
    } while (!atomic_compare_exchange_weak(busy_until_ns_p, &busy_until_ns, start_ns + duration_ns));
    account(image, start_ns, start_ns + duration_ns);
    return start_ns + duration_ns;
}

unsigned timeline_busy_percent(const image_t *image) {
    uint64_t current = timeline_now_ns() / BUCKET_NS;
    uint64_t busy_ns = 0;
    for (uint64_t number = current - BUCKETS_PER_SECOND; number < current; number++) {
        uint64_t bucket = image->busy_buckets[number % IMAGE_BUCKETS];
        if (bucket >> 32 == (uint32_t)number)
            busy_ns += bucket & UINT32_MAX;
    }
    uint64_t percent = busy_ns * 100 / SECOND_NS;
    return percent > 100 ? 100 : (unsigned)percent;
}

void timeline_wait(uint64_t until_ns) {
    struct timespec until = {.tv_sec = (time_t)(until_ns / SECOND_NS), .tv_nsec = (long)(until_ns % SECOND_NS)};
    while (timeline_now_ns() < until_ns && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}
