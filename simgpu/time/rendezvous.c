#define _GNU_SOURCE
#include "time/rendezvous.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "image/gpus.h"

#define LOCK_MEMBERS ((off_t)1 << 30)
#define MEMBER_BITS 10u
#define GENERATION_BITS 22u

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static rendezvous_t *node_page;
static int descriptor = -1; /* never closed: that would drop the lock of this process */
static uint32_t own_member; /* this process's index, and how often it was taken before */

static bool lock_member(int command, unsigned index) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_MEMBERS + index, .l_len = 1};
    int result = fcntl(descriptor, command, &lock);
    return command == F_GETLK ? result == 0 && lock.l_type != F_UNLCK : result == 0;
}

static uint32_t member_word(uint32_t index, uint32_t generation) {
    return index << GENERATION_BITS | (generation & ((1u << GENERATION_BITS) - 1));
}

static bool join(rendezvous_t *page) {
    for (uint32_t i = 0; i < RENDEZVOUS_MEMBERS; i++) {
        if (!lock_member(F_SETLK, i))
            continue;
        own_member = member_word(i, ++page->generations[i]);
        return true;
    }
    return false;
}

rendezvous_t *rendezvous_open(void) {
    char path[4096];
    pthread_mutex_lock(&mutex);
    if (descriptor < 0) {
        (void)snprintf(path, sizeof path, "%s/" RENDEZVOUS_NAME, gpus_directory());
        descriptor = open(path, O_RDWR | O_CLOEXEC);
        rendezvous_t *page =
            descriptor < 0 ? MAP_FAILED : mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (page != MAP_FAILED && memcmp(page->magic, RENDEZVOUS_MAGIC, sizeof page->magic) == 0 && join(page))
            node_page = page;
    }
    rendezvous_t *found = node_page;
    pthread_mutex_unlock(&mutex);
    return found;
}

rendezvous_t *rendezvous_own(void) {
    static rendezvous_t page;
    return &page;
}

/* The round and the member. The round is included so that arrivals of earlier rounds count as free. */
static uint64_t arrival_word(uint32_t round) {
    return (uint64_t)(round + 1) << 32 | own_member;
}

static bool is_alive(const rendezvous_t *page, uint64_t word) {
    uint32_t member = (uint32_t)word, index = member >> GENERATION_BITS;
    if (page != node_page || member == own_member)
        return true;
    return member_word(index, page->generations[index]) == member && lock_member(F_GETLK, index);
}

static bool is_taken(const rendezvous_t *page, uint64_t word, uint32_t round) {
    return word >> 32 == (uint64_t)round + 1 && is_alive(page, word);
}

static void end_round_if_complete(const rendezvous_t *page, rendezvous_meeting_t *meeting, unsigned size,
                                  uint32_t round) {
    for (unsigned i = 0; i < size; i++) {
        if (!is_taken(page, meeting->arrivals[i], round))
            return;
    }
    (void)atomic_compare_exchange_strong(&meeting->round, &round, round + 1);
}

static bool is_abandoned(const rendezvous_t *page, const rendezvous_meeting_t *meeting) {
    for (unsigned i = 0; i < RENDEZVOUS_MAX_SIZE; i++) {
        if (is_taken(page, meeting->arrivals[i], meeting->round))
            return false;
    }
    return true;
}

static rendezvous_meeting_t *find(rendezvous_t *page, uint64_t key) {
    for (unsigned i = 0; i < RENDEZVOUS_MEETINGS; i++) {
        rendezvous_meeting_t *meeting = &page->meetings[(key + i) % RENDEZVOUS_MEETINGS];
        uint64_t unused = 0;
        if (meeting->key == key || atomic_compare_exchange_strong(&meeting->key, &unused, key) || unused == key)
            return meeting;
    }
    /* All are in use: reuse one in which no member waits. Its round number has no meaning beyond one meeting. */
    for (unsigned i = 0; i < RENDEZVOUS_MEETINGS; i++) {
        rendezvous_meeting_t *meeting = &page->meetings[(key + i) % RENDEZVOUS_MEETINGS];
        uint64_t old = meeting->key;
        if (is_abandoned(page, meeting) && atomic_compare_exchange_strong(&meeting->key, &old, key))
            return meeting;
    }
    return NULL;
}

bool rendezvous_arrive(rendezvous_t *page, uint64_t key, unsigned size, rendezvous_wait_t *wait) {
    rendezvous_meeting_t *meeting = find(page, key);
    while (meeting != NULL) {
        uint32_t round = meeting->round;
        for (unsigned i = 0; i < size; i++) {
            uint64_t word = meeting->arrivals[i];
            if (is_taken(page, word, round) ||
                !atomic_compare_exchange_strong(&meeting->arrivals[i], &word, arrival_word(round)))
                continue;
            *wait = (rendezvous_wait_t){page, meeting, size, round};
            return true;
        }
        end_round_if_complete(page, meeting, size, round);
    }
    return false;
}

bool rendezvous_has_met(const rendezvous_wait_t *wait) {
    end_round_if_complete(wait->page, wait->meeting, wait->size, wait->round);
    return wait->meeting->round != wait->round;
}
