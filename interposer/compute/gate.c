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

/* Limits the delay if a wake-up is lost for an unforeseen reason. */
#define MAX_SLEEP_NS 100000000
#define LINE_BYTES 64

uint32_t gate_word __attribute__((aligned(LINE_BYTES)));

/* The fields that every launch reads are in other cache lines than those it writes. `open` and `launches` are
 * sequentially consistent: a launch is counted and then reads `open`; the helper clears `open` and then reads the
 * count. `counted` and `brief` are written before `open`, so a thread that sees the gate open sees them too. */
typedef struct {
    _Alignas(LINE_BYTES) _Atomic uint32_t open; /* a futex */
    _Atomic uint32_t open_count;
    atomic_bool used, counted, brief;
    _Alignas(LINE_BYTES) _Atomic uint64_t launches;
    _Atomic uint32_t waiting;
} gate_t;

static struct {
    pthread_mutex_t mutex; /* for gate_word, in case a GPU comes into use while it is computed */
    _Atomic unsigned used; /* number of GPUs in use */
    gate_notify_t *notify; /* called by a launch that waits */
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

/* The first revocation leaves only passes whose launches are counted since, or on their way to the driver. After the
 * second one, every further launch changes the count at least once. */
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
