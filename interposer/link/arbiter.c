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

#define CONNECT_TIMEOUT_MS 1 /* of the thread that looks after the leases: it tries again */
#define RECONNECT_NS (500 * MS_NS)
#define MAX_BACKOFF_NS (16000 * MS_NS)
/* So long an arbiter may get no processor on a busy node: to give up before is to refuse memory that is there. */
#define ANSWER_TIMEOUT_NS (3000 * MS_NS)

/* The socket is kept even when the arbiter is gone: only this process's death may close it, for that is what tells an
 * arbiter that the bytes are free. */
static struct {
    int socket; /* the same number also when it is another connection */
    bool connected;
    int pending; /* that is being made, or -1 */
    bool reported;
    bool rejected;       /* by the one that is there now, and the program was told */
    uint64_t backoff_ns; /* after the last refusal */
    uint64_t retry_ns;
    /* Whether dead processes have left bytes is answered in the order of the questions. The lock is held while one is
     * sent, and never while anything is waited for. */
    pthread_mutex_t mutex;
    uint32_t reclaim_requests;
    uint32_t reclaimed; /* a futex: answers so far; also those that will never come */
    uint32_t measured;  /* a futex: the number of the last answer */
    uint64_t measured_bytes;
    uint32_t measure_requests; /* about what is measured: one at a time */
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

void arbiter_begin(int socket) {
    arbiter.socket = socket;
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

static void disconnected(void) {
    pthread_mutex_lock(&arbiter.mutex);
    __atomic_store_n(&arbiter.connected, false, __ATOMIC_SEQ_CST);
    __atomic_store_n(&arbiter.reclaimed, arbiter.reclaim_requests, __ATOMIC_SEQ_CST); /* nobody will answer */
    pthread_mutex_unlock(&arbiter.mutex);
    wake(&arbiter.reclaimed);
    wake(&arbiter.measured);
    arbiter.retry_ns = 0;
    if (!arbiter.reported)
        report("the arbiter went away: memory limits still hold, and where the GPU is shared this program "
               "launches for its request's part of the time, until the node's agent runs again");
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
        case WIRE_UNKNOWN: /* from an agent that knows more than we do */
            break;
        case WIRE_END:
            disconnected();
            break;
        }
    }
    return false;
}

static void close_pending(void) {
    close(arbiter.pending);
    arbiter.pending = -1;
}

/* The new connection takes the place of the old one, whose descriptor is never free for the application to get. */
static bool adopt(void) {
    bool adopted = dup3(arbiter.pending, arbiter.socket, O_CLOEXEC) >= 0;
    close_pending();
    return adopted;
}

/* The next agent, or this one when it knows more, may think otherwise; it is not to be asked too often. */
static void rejected(const char *sentence) {
    if (!arbiter.rejected)
        report("%s; until then this program goes on with the limits that it has", sentence);
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
        close_pending();
        if (answer == WIRE_REFUSED)
            rejected(sentence);
        return false;
    }
    if (!map_pages(&welcome)) {
        close_pending();
        report("the arbiter that runs now has other pages for this container: restart the container");
        arbiter.retry_ns = FOREVER;
        return false;
    }
    arbiter.rejected = false;
    return adopt();
}

/* The number of the question: so many answers have come when it is answered. False: it cannot be asked now. */
static bool request_reclaim(uint32_t *number_p) {
    pthread_mutex_lock(&arbiter.mutex);
    bool reclaim_requests =
        __atomic_load_n(&arbiter.connected, __ATOMIC_SEQ_CST) && wire_request_reclaim(arbiter.socket);
    if (reclaim_requests)
        *number_p = ++arbiter.reclaim_requests;
    pthread_mutex_unlock(&arbiter.mutex);
    return reclaim_requests;
}

/* Whatever is said first tells it that this process goes by its limits page now. */
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
    (void)request_reclaim(&number);
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

/* Until the word has come to a number, or it is so late, or the arbiter has gone; returns the word. Signals end a wait,
 * and a program that is profiled has one every few milliseconds. */
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

/* Not until any answer has come: that may be one to another thread, of a look before what is asked for was free. */
void arbiter_reclaim(void) {
    uint32_t number;
    if (request_reclaim(&number))
        (void)wait_for(&arbiter.reclaimed, number, now_ns() + ANSWER_TIMEOUT_NS);
}

/* An answer that came too late for its question is of an older look: it has another number. */
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
