/* Where kernels of all GPUs of a node wait for each other, whosever they are: a file beside those of the GPUs.
 *
 * A meeting has a key and a size, and its rounds have a number. Who comes takes one of its places in the round that is
 * on; when all places are taken by the living, the round is over, and all who are in it may go on. Everything is done
 * by compare and swap: a process may die or be stopped anywhere. Who is alive is known by locks on the file, as in
 * slots.h, so the place of a dead one is free. */
#ifndef SIMGPU_RENDEZVOUS_H
#define SIMGPU_RENDEZVOUS_H

#include <stdbool.h>
#include <stdint.h>

#define RENDEZVOUS_NAME "rendezvous"
#define RENDEZVOUS_MAGIC "rndvous"
#define RENDEZVOUS_MEMBERS 1024u
#define RENDEZVOUS_MEETINGS 256u
#define RENDEZVOUS_MAX_SIZE 64u /* the largest meeting */

typedef struct {
    _Atomic uint64_t key; /* 0: nobody's */
    _Atomic uint32_t round;
    _Atomic uint64_t arrivals[RENDEZVOUS_MAX_SIZE];
} rendezvous_meeting_t;

typedef struct {
    char magic[8];
    _Atomic uint32_t generations[RENDEZVOUS_MEMBERS]; /* how often each seat has been taken */
    rendezvous_meeting_t meetings[RENDEZVOUS_MEETINGS];
} rendezvous_t;

/* Somebody who waits in a round. */
typedef struct {
    rendezvous_t *page;
    rendezvous_meeting_t *meeting;
    unsigned size;
    uint32_t round;
} rendezvous_wait_t;

/* That of the node; NULL: this process has been given none. `rendezvous_own`: one for this process alone. */
rendezvous_t *rendezvous_open(void);
rendezvous_t *rendezvous_own(void);

/* False: all meetings are in use. */
bool rendezvous_arrive(rendezvous_t *page, uint64_t key, unsigned size, rendezvous_wait_t *wait);
bool rendezvous_has_met(const rendezvous_wait_t *wait);

#endif
