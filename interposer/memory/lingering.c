#define _GNU_SOURCE
#include "memory/lingering.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/contract.h"
#include "base/fork.h"
#include "link/arbiter.h"
#include "share/share.h"

#define RECHECK_NS (1000 * MS_NS)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* for requests to the arbiter */
static _Atomic uint64_t lingering_bytes[MAX_GPUS];
static _Atomic uint64_t checked_ns[MAX_GPUS];

static void lingering_after_fork(void) {
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < MAX_GPUS; i++)
        lingering_bytes[i] = checked_ns[i] = 0;
}
FORK_ON_CHILD(lingering_after_fork)

void lingering_add(uint32_t gpu, uint64_t bytes) {
    lingering_bytes[gpu] += bytes;
}

static uint64_t subtract(uint64_t bytes, uint64_t by_bytes) {
    return bytes > by_bytes ? bytes - by_bytes : 0;
}

/* With the lock held. The agent does not know what our caches hold, because the driver may shrink them at any time.
 * If none has grown since, what they hold after the measurement they have held all the time. */
static uint64_t find_gone(uint32_t gpu, uint64_t before_bytes) {
    uint64_t unclaimed_bytes;
    uint64_t growths = cache_growth_count(gpu);
    if (!arbiter_measure(gpu, &unclaimed_bytes))
        return 0;
    return subtract(before_bytes, subtract(unclaimed_bytes, cache_stable_bytes(gpu, growths)));
}

bool lingering_refund(uint32_t gpu) {
    if (lingering_bytes[gpu] == 0 || !share_tracks_certain())
        return false;
    pthread_mutex_lock(&mutex);
    uint64_t before_bytes =
        lingering_bytes[gpu]; /* read before the request, whose answer does not cover memory freed later */
    uint64_t gone_bytes = before_bytes > 0 ? find_gone(gpu, before_bytes) : 0;
    lingering_bytes[gpu] -= gone_bytes;
    checked_ns[gpu] = now_ns();
    pthread_mutex_unlock(&mutex);
    if (gone_bytes > 0)
        share_refund(gpu, gone_bytes);
    return gone_bytes > 0 || before_bytes == 0; /* another thread may have done it meanwhile */
}

void lingering_make_room(uint32_t gpu, attempt_t attempt) {
    cache_make_room(gpu, attempt);
    if (attempt >= ATTEMPT_TRIMMED)
        (void)lingering_refund(gpu);
}

void lingering_poll(uint32_t gpu) {
    if (lingering_bytes[gpu] > 0 && now_ns() - checked_ns[gpu] > RECHECK_NS)
        (void)lingering_refund(gpu);
}
