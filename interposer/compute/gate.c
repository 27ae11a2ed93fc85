#define _GNU_SOURCE
#include "compute/gate.h"

#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/contract.h"
#include "base/fork.h"

/* A wake-up that is lost, in a way nobody has thought of, costs so much and not the program. */
#define LONGEST_SLEEP_NS 100000000

uint32_t gate_word __attribute__((aligned(64)));

typedef struct {
    uint32_t open; /* a futex */
    uint32_t waiting;
    uint32_t opened;
    bool used;
    bool counted, brief;
    uint64_t launches;
} gate_t;

static struct {
    pthread_mutex_t mutex; /* of gate_word, against a GPU that comes into use while the word is worked out */
    unsigned used;         /* GPUs */
    gate_tell_t *tell;     /* whom a launch tells that it waits */
    gate_t gates[MAX_GPUS] __attribute__((aligned(64)));
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
        const gate_t *gate = &state.gates[i];
        used = used || gate->used;
        if (gate->used && (!__atomic_load_n(&gate->open, __ATOMIC_SEQ_CST) || gate->counted))
            wide_open = false;
    }
    __atomic_store_n(&gate_word, used && wide_open ? GATE_WIDE_OPEN : 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&state.mutex);
}

void gate_use(uint32_t gpu) {
    gate_t *gate = &state.gates[gpu];
    if (__atomic_load_n(&gate->used, __ATOMIC_ACQUIRE) || __atomic_exchange_n(&gate->used, true, __ATOMIC_ACQ_REL))
        return;
    __atomic_add_fetch(&state.used, 1, __ATOMIC_RELEASE);
    set_word();
}

void gate_open(uint32_t gpu, bool counted, bool brief) {
    gate_t *gate = &state.gates[gpu];
    __atomic_store_n(&gate->counted, counted, __ATOMIC_RELAXED);
    __atomic_store_n(&gate->brief, brief, __ATOMIC_RELAXED);
    if (!__atomic_load_n(&gate->open, __ATOMIC_SEQ_CST))
        __atomic_add_fetch(&gate->opened, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&gate->open, 1, __ATOMIC_SEQ_CST);
    set_word();
    if (__atomic_load_n(&gate->waiting, __ATOMIC_SEQ_CST) > 0)
        (void)syscall(SYS_futex, &gate->open, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void gate_close(uint32_t gpu) {
    __atomic_store_n(&state.gates[gpu].open, 0, __ATOMIC_SEQ_CST);
    set_word();
}

bool gate_is_open(uint32_t gpu) {
    return __atomic_load_n(&state.gates[gpu].open, __ATOMIC_SEQ_CST) != 0;
}

bool gate_is_used(uint32_t gpu) {
    return __atomic_load_n(&state.gates[gpu].used, __ATOMIC_ACQUIRE);
}

bool gate_is_only(void) {
    return __atomic_load_n(&state.used, __ATOMIC_ACQUIRE) == 1;
}

bool gate_is_brief(uint32_t gpu) {
    return __atomic_load_n(&state.gates[gpu].brief, __ATOMIC_RELAXED);
}

bool gate_is_waited_for(uint32_t gpu) {
    return __atomic_load_n(&state.gates[gpu].waiting, __ATOMIC_SEQ_CST) > 0;
}

uint32_t gate_opened(uint32_t gpu) {
    return __atomic_load_n(&state.gates[gpu].opened, __ATOMIC_SEQ_CST);
}

uint64_t gate_launches(uint32_t gpu) {
    return __atomic_load_n(&state.gates[gpu].launches, __ATOMIC_SEQ_CST);
}

uint64_t gate_passed(uint32_t gpu) {
    return gate_launches(gpu) - __atomic_load_n(&state.gates[gpu].waiting, __ATOMIC_SEQ_CST);
}

static void wait_until_open(gate_t *gate) {
    const struct timespec longest = {.tv_nsec = LONGEST_SLEEP_NS};
    if (__atomic_load_n(&gate->open, __ATOMIC_SEQ_CST))
        return;
    __atomic_add_fetch(&gate->waiting, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&gate->open, __ATOMIC_SEQ_CST)) {
        state.tell();
        (void)syscall(SYS_futex, &gate->open, FUTEX_WAIT_PRIVATE, 0, &longest, NULL, 0);
    }
    __atomic_sub_fetch(&gate->waiting, 1, __ATOMIC_SEQ_CST);
}

void gate_wait(uint32_t gpu) {
    wait_until_open(&state.gates[gpu]);
}

bool gate_come(uint32_t gpu, uint64_t *launches_p) {
    gate_t *gate = &state.gates[gpu];
    gate_use(gpu);
    *launches_p = __atomic_add_fetch(&gate->launches, 1, __ATOMIC_SEQ_CST);
    wait_until_open(gate);
    return __atomic_load_n(&gate->counted, __ATOMIC_RELAXED);
}
