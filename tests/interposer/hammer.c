/* Processes that charge and refund against one limit as fast as they can, with the library's code.
 *
 * hammer PROCESSES ROUNDS: prints the most that was granted at once, in charges of 30 with a limit of 100, and what
 * is charged at the end. A grant is counted after it is given and before it is returned, so the count never exceeds
 * what was granted. Sometimes a process sleeps with a grant; otherwise processes on a busy machine would run one
 * after another and never overlap. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "share/quota.h"

#define LIMIT 100u
#define CHARGE 30u
#define ROUNDS_AWAKE 8192
#define SLEEP_US 50

typedef struct {
    limits_page_t limits;
    ledger_page_t ledger;
    uint32_t ready;
    uint64_t granted;
    uint64_t most;
} shared_t;

static void raise_to(uint64_t *most, uint64_t value) {
    uint64_t old = __atomic_load_n(most, __ATOMIC_SEQ_CST);
    while (old < value && !__atomic_compare_exchange_n(most, &old, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
}

static void hammer(shared_t *shared, const quota_t *quota, uint32_t processes, long rounds) {
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < processes)
        usleep(100);
    for (long i = 0; i < rounds; i++) {
        if (!quota_charge(quota, CHARGE))
            continue;
        raise_to(&shared->most, __atomic_add_fetch(&shared->granted, CHARGE, __ATOMIC_SEQ_CST));
        if (i % ROUNDS_AWAKE == 0)
            usleep(SLEEP_US);
        __atomic_sub_fetch(&shared->granted, CHARGE, __ATOMIC_SEQ_CST);
        quota_refund(quota, CHARGE);
    }
}

int main(int count, char **arguments) {
    uint32_t processes = count > 1 ? (uint32_t)atoi(arguments[1]) : 4;
    long rounds = count > 2 ? atol(arguments[2]) : 100000;
    shared_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || processes > LEDGER_SLOTS)
        return EXIT_FAILURE;
    shared->limits.slot_count = processes;
    shared->limits.gpu[0].memory_bytes = LIMIT;

    quota_t quota = {.ledger = &shared->ledger, .limits = &shared->limits, .gpu = 0};
    for (quota.slot = 0; quota.slot < processes; quota.slot++) {
        pid_t child = fork();
        if (child == 0) {
            hammer(shared, &quota, processes, rounds);
            _exit(EXIT_SUCCESS);
        }
        if (child < 0)
            return EXIT_FAILURE;
    }
    while (wait(NULL) > 0)
        continue;
    printf("%llu %llu\n", (unsigned long long)shared->most, (unsigned long long)quota_used_bytes(&quota));
    return EXIT_SUCCESS;
}
