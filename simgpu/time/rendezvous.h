/* How kernels on all GPUs of a node, in any processes, wait for each other: a file in the GPUs' directory.
 *
 * A meeting has a key and a size, and proceeds in numbered rounds. A kernel that arrives takes one of the meeting's
 * entries in the current round. When living processes have taken all entries, the round ends and its members
 * continue. All changes are made by compare and swap, because a process may die or be stopped at any point. Locks on
 * the file, as in locks.h, show which members live; the entries of dead members are free. */
#ifndef SIMGPU_RENDEZVOUS_H
#define SIMGPU_RENDEZVOUS_H

#include <stdbool.h>
#include <stdint.h>

#define RENDEZVOUS_NAME "rendezvous"
#define RENDEZVOUS_MAGIC "rndvous"
#define RENDEZVOUS_MEMBERS 1024u
#define RENDEZVOUS_MEETINGS 256u
#define RENDEZVOUS_MAX_SIZE 64u /* the most kernels in a meeting */

typedef struct {
    _Atomic uint64_t key; /* 0: unused */
    _Atomic uint32_t round;
    _Atomic uint64_t arrivals[RENDEZVOUS_MAX_SIZE];
} rendezvous_meeting_t;

typedef struct {
    char magic[8];
    _Atomic uint32_t generations[RENDEZVOUS_MEMBERS]; /* how often each index has been taken */
    rendezvous_meeting_t meetings[RENDEZVOUS_MEETINGS];
} rendezvous_t;

/* An arrival that waits for the end of its round. */
typedef struct {
    rendezvous_t *page;
    rendezvous_meeting_t *meeting;
    unsigned size;
    uint32_t round;
} rendezvous_wait_t;

/* Return the node's page; NULL if this process has no such file. `rendezvous_own` returns one for this process
 * alone. */
rendezvous_t *rendezvous_open(void);
rendezvous_t *rendezvous_own(void);

/* False: all meetings are in use. */
bool rendezvous_arrive(rendezvous_t *page, uint64_t key, unsigned size, rendezvous_wait_t *wait);
bool rendezvous_has_met(const rendezvous_wait_t *wait);

#endif
