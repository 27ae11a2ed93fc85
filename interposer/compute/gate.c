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
#define LONGEST_SLEEP_NS 100000000
#define LINE_BYTES 64

uint32_t gate_word __attribute__((aligned(LINE_BYTES)));

/* What is looked at by all that launch is in other cache lines than what they write. `open` and `launches` are in one
 * order with each other: a launch is counted, then looks whether the gate is open; the helper closes it, then looks how
 * many were counted. `counted` and `brief` are set before `open` is, which makes them seen by whoever sees it open. */
typedef struct {
    _Alignas(LINE_BYTES) _Atomic uint32_t open; /* a futex */
    _Atomic uint32_t opened;
    atomic_bool used, counted, brief;
    _Alignas(LINE_BYTES) _Atomic uint64_t launches;
    _Atomic uint32_t waiting;
} gate_t;

static struct {
    pthread_mutex_t mutex; /* of gate_word, against a GPU that comes into use while the word is worked out */
    _Atomic unsigned used; /* GPUs */
    gate_tell_t *tell;     /* whom a launch tells that it waits */
    gate_t gates[MAX_GPUS];
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void gate_after_fork(void) {
    gate_word = 0;
    memset(&state, 0, sizeof state);
    state.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
FORK_ON_CHILD(gate_after_fork)

void gate_begin(gate_tell_t *tell) {
    state.tell = tell;
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

void gate_use(uint32_t gpu) {
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
        atomic_fetch_add(&gate->opened, 1);
    atomic_store(&gate->open, 1);
    passes_recall();
    set_word();
    if (atomic_load(&gate->waiting) > 0)
        (void)syscall(SYS_futex, &gate->open, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void gate_close(uint32_t gpu) {
    atomic_store(&state.gates[gpu].open, 0);
    passes_recall();
    set_word();
}

bool gate_is_open(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].open) != 0;
}

bool gate_is_counted(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].counted);
}

bool gate_is_only(void) {
    return atomic_load(&state.used) == 1;
}

bool gate_is_brief(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].brief);
}

bool gate_is_waited_for(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].waiting) > 0;
}

uint32_t gate_opened(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].opened);
}

/* Recalled before, so that what has a pass now was counted since the last time, or was on its way to the driver then;
 * and after, so that whatever is launched from now on is counted once more, at least. */
uint64_t gate_launches(uint32_t gpu) {
    passes_recall();
    uint64_t launches = atomic_load(&state.gates[gpu].launches);
    passes_recall();
    return launches;
}

uint64_t gate_passed(uint32_t gpu) {
    return atomic_load(&state.gates[gpu].launches) - atomic_load(&state.gates[gpu].waiting);
}

static void wait_until_open(gate_t *gate) {
    const struct timespec longest = {.tv_nsec = LONGEST_SLEEP_NS};
    if (atomic_load(&gate->open))
        return;
    atomic_fetch_add(&gate->waiting, 1);
    while (!atomic_load(&gate->open)) {
        state.tell();
        (void)syscall(SYS_futex, &gate->open, FUTEX_WAIT_PRIVATE, 0, &longest, NULL, 0);
    }
    atomic_fetch_sub(&gate->waiting, 1);
}

void gate_wait(uint32_t gpu) {
    wait_until_open(&state.gates[gpu]);
}

uint64_t gate_come(uint32_t gpu, unsigned several) {
    gate_t *gate = &state.gates[gpu];
    gate_use(gpu);
    uint64_t launches = atomic_fetch_add(&gate->launches, several) + 1;
    wait_until_open(gate);
    return launches;
}
