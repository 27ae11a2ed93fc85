#define _GNU_SOURCE
#include "link/arbiter.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "base/report.h"
#include "link/wire.h"

#define CONNECT_TIMEOUT_MS 1 /* short, for the thread that also handles the leases; it retries */
#define RECONNECT_NS (500 * MS_NS)
#define MAX_BACKOFF_NS (16000 * MS_NS)
/* On a busy node the arbiter may get no processor for this long. Giving up earlier would refuse memory that is free. */
#define ANSWER_TIMEOUT_NS (3000 * MS_NS)

/* The socket stays open even when the arbiter is gone. An arbiter learns from its closing that the process has died
 * and its bytes are free, so only the process's death may close it. */
static struct {
    int socket; /* a new connection gets the same number */
    bool connected;
    int pending; /* the connection being made, or -1 */
    bool reported;
    uint32_t isolation;
    bool rejected;       /* by the current arbiter, and that was reported */
    uint64_t backoff_ns; /* after the last refusal */
    uint64_t retry_ns;
    /* The arbiter answers RECLAIM in the order of the requests. The lock is held while sending one, never while
     * waiting. */
    pthread_mutex_t mutex;
    uint32_t reclaim_requests;
    uint32_t reclaimed; /* a futex: number of answers, including those that can no longer come */
    uint32_t measured;  /* a futex: number of the last MEASURE that was answered */
    uint64_t measured_bytes;
    uint32_t measure_requests; /* MEASURE requests; one at a time */
} arbiter = {.socket = -1, .pending = -1, .mutex = PTHREAD_MUTEX_INITIALIZER};

static void arbiter_after_fork(void) {
    if (arbiter.socket >= 0)
        close(arbiter.socket);
    if (arbiter.pending >= 0)
        close(arbiter.pending);
    memset(&arbiter, 0, sizeof arbiter);
    arbiter.socket = arbiter.pending = -1;
    arbiter.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
FORK_ON_CHILD(arbiter_after_fork)

void arbiter_begin(int socket, uint32_t isolation) {
    arbiter.socket = socket;
    arbiter.isolation = isolation;
    __atomic_store_n(&arbiter.connected, true, __ATOMIC_SEQ_CST);
}

void arbiter_end(void) {
    if (arbiter.socket >= 0)
        close(arbiter.socket);
    arbiter.socket = -1;
    __atomic_store_n(&arbiter.connected, false, __ATOMIC_SEQ_CST);
}

bool arbiter_is_connected(void) {
    return arbiter.connected;
}

bool arbiter_send(unsigned type, uint32_t gpu, uint32_t flags, uint64_t lease) {
    return arbiter.connected && wire_send_lease(arbiter.socket, type, gpu, flags, lease);
}

static void wake(const uint32_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* By the isolation of the share: what still limits the program. */
static const char *const away[] = {
    [ISOLATION_ARBITER] = "the arbiter went away: until the node's agent runs again, memory limits stay in force, and "
                          "on a shared GPU this program launches only for its requested part of the time",
    [ISOLATION_MPS] = "the arbiter went away: until the node's agent runs again, memory limits and MPS's limit on "
                      "multiprocessors stay in force",
    [ISOLATION_NONE] = "the arbiter went away: this program continues without limits, as its share's isolation is none",
};

static void disconnected(void) {
    pthread_mutex_lock(&arbiter.mutex);
    __atomic_store_n(&arbiter.connected, false, __ATOMIC_SEQ_CST);
    __atomic_store_n(&arbiter.reclaimed, arbiter.reclaim_requests, __ATOMIC_SEQ_CST); /* these will get no answer */
    pthread_mutex_unlock(&arbiter.mutex);
    wake(&arbiter.reclaimed);
    wake(&arbiter.measured);
    arbiter.retry_ns = 0;
    if (!arbiter.reported)
        report("%s", away[arbiter.isolation]);
    arbiter.reported = true;
}

bool arbiter_receive(wire_lease_t *message) {
    while (arbiter.connected) {
        switch (wire_next(arbiter.socket, message)) {
        case WIRE_NOTHING:
            return false;
        case WIRE_LEASE:
            return true;
        case WIRE_RECLAIMED:
            __atomic_add_fetch(&arbiter.reclaimed, 1, __ATOMIC_SEQ_CST);
            wake(&arbiter.reclaimed);
            break;
        case WIRE_MEASURED:
            __atomic_store_n(&arbiter.measured_bytes, message->lease, __ATOMIC_SEQ_CST);
            __atomic_store_n(&arbiter.measured, message->flags, __ATOMIC_SEQ_CST);
            wake(&arbiter.measured);
            break;
        case WIRE_UNKNOWN: /* from a newer agent */
            break;
        case WIRE_END:
            disconnected();
            break;
        }
    }
    return false;
}

static void drop_pending(void) {
    close(arbiter.pending);
    arbiter.pending = -1;
}

/* Replace the old connection by the new one in one step, so that the application never gets the old descriptor's
 * number. */
static bool adopt(void) {
    bool adopted = dup3(arbiter.pending, arbiter.socket, O_CLOEXEC) >= 0;
    drop_pending();
    return adopted;
}

/* Back off: a later agent, or this one once it knows more, may accept the process. */
static void rejected(const char *sentence) {
    if (!arbiter.rejected)
        report("%s; until then this program keeps its current limits", sentence);
    arbiter.backoff_ns = arbiter.rejected ? 2 * arbiter.backoff_ns : RECONNECT_NS;
    if (arbiter.backoff_ns > MAX_BACKOFF_NS)
        arbiter.backoff_ns = MAX_BACKOFF_NS;
    arbiter.rejected = true;
    arbiter.retry_ns = now_ns() + arbiter.backoff_ns;
}

static bool finish(arbiter_map_pages_t *map_pages) {
    char sentence[512];
    wire_welcome_result_t welcome;
    wire_answer_t answer = wire_finish_join(arbiter.pending, &welcome, sentence, sizeof sentence);
    if (answer == WIRE_PENDING)
        return false;
    if (answer != WIRE_WELCOMED) {
        drop_pending();
        if (answer == WIRE_REFUSED)
            rejected(sentence);
        return false;
    }
    if (!map_pages(&welcome)) {
        drop_pending();
        report("the new arbiter has different pages for this container: restart the container");
        arbiter.retry_ns = FOREVER;
        return false;
    }
    arbiter.rejected = false;
    return adopt();
}

/* Send RECLAIM and return its number: it is answered once that many answers have come. Returns false if it cannot be
 * sent now. */
static bool request_reclaim(uint32_t gpu, uint64_t bytes, uint32_t *number_p) {
    pthread_mutex_lock(&arbiter.mutex);
    bool reclaim_requests =
        __atomic_load_n(&arbiter.connected, __ATOMIC_SEQ_CST) && wire_request_reclaim(arbiter.socket, gpu, bytes);
    if (reclaim_requests)
        *number_p = ++arbiter.reclaim_requests;
    pthread_mutex_unlock(&arbiter.mutex);
    return reclaim_requests;
}

/* The first message after a reconnect tells the arbiter that this process uses its limits page now. */
bool arbiter_reconnect(arbiter_map_pages_t *map_pages) {
    char sentence[512];
    int pending;
    uint32_t number;
    if (arbiter.pending < 0 && now_ns() < arbiter.retry_ns)
        return false;
    if (arbiter.pending < 0) {
        if (wire_start_join(&pending, CONNECT_TIMEOUT_MS, sentence, sizeof sentence))
            arbiter.pending = pending;
        arbiter.retry_ns = now_ns() + RECONNECT_NS;
        return false;
    }
    if (!finish(map_pages))
        return false;
    __atomic_store_n(&arbiter.connected, true, __ATOMIC_SEQ_CST);
    (void)request_reclaim(0, 0, &number);
    return true;
}

int arbiter_descriptor(void) {
    return arbiter.connected ? arbiter.socket : arbiter.pending;
}

uint64_t arbiter_wake_ns(void) {
    if (arbiter.connected)
        return FOREVER;
    return arbiter.retry_ns > now_ns() ? arbiter.retry_ns : now_ns() + RECONNECT_NS;
}

/* Wait until the word has reached the number, the time is over, or the arbiter is gone. Returns the word. Signals
 * interrupt the wait, and a profiled program gets one every few milliseconds. */
static uint32_t wait_for(const uint32_t *word, uint32_t number, uint64_t until_ns) {
    for (;;) {
        uint32_t now = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        uint64_t at_ns = now_ns();
        if ((int32_t)(now - number) >= 0 || at_ns >= until_ns || !__atomic_load_n(&arbiter.connected, __ATOMIC_SEQ_CST))
            return now;
        const struct timespec left = time_of(until_ns - at_ns);
        (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, now, &left, NULL, 0);
    }
}

/* Waiting for just any answer would be wrong: it may belong to another thread's request, sent before the bytes were
 * freed. */
void arbiter_reclaim(uint32_t gpu, uint64_t bytes) {
    uint32_t number;
    if (request_reclaim(gpu, bytes, &number))
        (void)wait_for(&arbiter.reclaimed, number, now_ns() + ANSWER_TIMEOUT_NS);
}

/* The number identifies a late answer to an earlier request. */
bool arbiter_measure(uint32_t gpu, uint64_t *bytes_p) {
    const uint64_t until_ns = now_ns() + ANSWER_TIMEOUT_NS;
    uint32_t number = ++arbiter.measure_requests;
    if (!__atomic_load_n(&arbiter.connected, __ATOMIC_SEQ_CST) ||
        !wire_send_lease(arbiter.socket, MESSAGE_MEASURE, gpu, number, 0))
        return false;
    uint32_t last = wait_for(&arbiter.measured, number, until_ns);
    *bytes_p = __atomic_load_n(&arbiter.measured_bytes, __ATOMIC_SEQ_CST);
    return last == number;
}
