#define _GNU_SOURCE
#include "memory/doubt.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/contract.h"
#include "base/fork.h"
#include "link/arbiter.h"
#include "share/share.h"

#define LOOK_NS (1000 * MS_NS)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of asking */
static _Atomic uint64_t doubtful_bytes[MAX_GPUS];
static _Atomic uint64_t asked_ns[MAX_GPUS];

static void doubt_after_fork(void) {
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < MAX_GPUS; i++)
        doubtful_bytes[i] = asked_ns[i] = 0;
}
FORK_ON_CHILD(doubt_after_fork)

void doubt_add(uint32_t gpu, uint64_t bytes) {
    doubtful_bytes[gpu] += bytes;
}

static uint64_t less(uint64_t bytes, uint64_t by_bytes) {
    return bytes > by_bytes ? bytes - by_bytes : 0;
}

/* With the lock held. The agent does not know what our pools have: they may have become smaller without a call. What
 * they have after it has looked, they had all the time, if none has grown. */
static uint64_t ask(uint32_t gpu, uint64_t doubted_bytes) {
    uint64_t unclaimed_bytes;
    uint64_t growths = keeper_growths(gpu);
    if (!arbiter_measure(gpu, &unclaimed_bytes))
        return 0;
    return less(doubted_bytes, less(unclaimed_bytes, keeper_kept_bytes(gpu, growths)));
}

bool doubt_ask(uint32_t gpu) {
    if (doubtful_bytes[gpu] == 0 || !share_is_measured())
        return false;
    pthread_mutex_lock(&mutex);
    uint64_t doubted_bytes = doubtful_bytes[gpu]; /* before the question: what is let go later is not in the answer */
    uint64_t gone_bytes = doubted_bytes > 0 ? ask(gpu, doubted_bytes) : 0;
    doubtful_bytes[gpu] -= gone_bytes;
    asked_ns[gpu] = now_ns();
    pthread_mutex_unlock(&mutex);
    if (gone_bytes > 0)
        share_refund(gpu, gone_bytes);
    return gone_bytes > 0 || doubted_bytes == 0; /* or another thread has done it meanwhile */
}

void doubt_make_room(uint32_t gpu, attempt_t attempt) {
    keeper_make_room(gpu, attempt);
    if (attempt >= ATTEMPT_TRIMMED)
        (void)doubt_ask(gpu);
}

void doubt_look(uint32_t gpu) {
    if (doubtful_bytes[gpu] > 0 && now_ns() - asked_ns[gpu] > LOOK_NS)
        (void)doubt_ask(gpu);
}
