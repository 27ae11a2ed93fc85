#define _GNU_SOURCE
#include "compute/gate.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/contract.h"
#include "base/fork.h"
#include "compute/passes.h"

/* A wake-up that is lost, in a way nobody has thought of, costs so much and not the program. */
#define MAX_SLEEP_NS 100000000
#define LINE_BYTES 64

uint32_t gate_word __attribute__((aligned(LINE_BYTES)));

/* What is looked at by all that launch is in other cache lines than what they write. `open` and `launches` are in one
 * order with each other: a launch is counted, then looks whether the gate is open; the helper closes it, then looks how
 * many were counted. `counted` and `brief` are set before `open` is, which makes them seen by whoever sees it open. */
typedef struct {
    _Alignas(LINE_BYTES) _Atomic uint32_t open; /* a futex */
    _Atomic uint32_t open_count;
    atomic_bool used, counted, brief;
    _Alignas(LINE_BYTES) _Atomic uint64_t launches;
    _Atomic uint32_t waiting;
} gate_t;

static struct {
    pthread_mutex_t mutex; /* of gate_word, against a GPU that comes into use while the word is worked out */
    _Atomic unsigned used; /* GPUs */
    gate_notify_t *notify; /* whom a launch tells that it waits */
    gate_t gates[MAX_GPUS];
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void gate_after_fork(void) {
    gate_word = 0;
    memset(&state, 0, sizeof state);
    state.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
FORK_ON_CHILD(gate_after_fork)

void gate_begin(gate_notify_t *notify) {
    state.notify = notify;
}

static void set_word(void) {
    bool wide_open = true, used = false;
    pthread_mutex_lock(&state.mutex);
    for (unsigned i = 0; i < MAX_GPUS; i++) {
        gate_t *gate = &state.gates[i];
        bool in_use = atomic_load(&gate->used);
        used = used || in_use;
        if (in_use && (!atomic_load(&gate->open) || atomic_load(&gate->counted)))
            wide_open = false;
    }
    __atomic_store_n(&gate_word, used && wide_open ? GATE_WIDE_OPEN : 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&state.mutex);
}

void gate_mark_used(uint32_t gpu) {
    gate_t *gate = &state.gates[gpu];
    if (atomic_load_explicit(&gate->used, memory_order_acquire) || atomic_exchange(&gate->used, true))
        return;
    atomic_fetch_add(&state.used, 1);
    set_word();
}

bool gate_is_used(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].used);
}

void gate_open(uint32_t gpu, bool counted, bool brief) {
    gate_t *gate = &state.gates[gpu];
    atomic_store(&gate->counted, counted);
    atomic_store(&gate->brief, brief);
    if (!atomic_load(&gate->open))
        atomic_fetch_add(&gate->open_count, 1);
    atomic_store(&gate->open, 1);
    passes_revoke();
    set_word();
    if (atomic_load(&gate->waiting) > 0)
        (void)syscall(SYS_futex, &gate->open, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void gate_close(uint32_t gpu) {
    atomic_store(&state.gates[gpu].open, 0);
    passes_revoke();
    set_word();
}

bool gate_is_open(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].open) != 0;
}

bool gate_is_counted(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].counted);
}

bool gate_is_single(void) {
    return atomic_load(&state.used) == 1;
}

bool gate_is_brief(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].brief);
}

bool gate_has_waiters(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].waiting) > 0;
}

uint32_t gate_open_count(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].open_count);
}

/* Recalled before, so that what has a pass now was counted since the last time, or was on its way to the driver then;
 * and after, so that whatever is launched from now on is counted once more, at least. */
uint64_t gate_launches(uint32_t gpu) {
    passes_revoke();
    uint64_t launches = atomic_load(&state.gates[gpu].launches);
    passes_revoke();
    return launches;
}

uint64_t gate_passed(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].launches) - atomic_load(&state.gates[gpu].waiting);
}

static void wait_until_open(gate_t *gate) {
    const struct timespec max_sleep = {.tv_nsec = MAX_SLEEP_NS};
    if (atomic_load(&gate->open))
        return;
    atomic_fetch_add(&gate->waiting, 1);
    while (!atomic_load(&gate->open)) {
        state.notify();
        (void)syscall(SYS_futex, &gate->open, FUTEX_WAIT_PRIVATE, 0, &max_sleep, NULL, 0);
    }
    atomic_fetch_sub(&gate->waiting, 1);
}

void gate_wait(uint32_t gpu) {
    wait_until_open(&state.gates[gpu]);
}

uint64_t gate_enter(uint32_t gpu, unsigned count) {
    gate_t *gate = &state.gates[gpu];
    gate_mark_used(gpu);
    uint64_t launches = atomic_fetch_add(&gate->launches, count) + 1;
    wait_until_open(gate);
    return launches;
}
