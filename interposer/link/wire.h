/* Messages to and from the arbiter: one SOCK_SEQPACKET connection per process, see contract.h. Both sides use the
 * newest protocol version that both speak; each WELCOME names it. */
#ifndef GPUSHARE_WIRE_H
#define GPUSHARE_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/contract.h"

typedef struct {
    int socket;
    unsigned slot;
    unsigned gpu_count;
    int limits; /* descriptors, for the caller to map and close */
    int ledger;
    wire_isolation_t isolation;
} wire_welcome_result_t;

/* Connect and wait for WELCOME. Returns false on failure, with the reason and the remedy in `sentence`. */
bool wire_join(wire_welcome_result_t *result, char *sentence, unsigned sentence_size);

/* The same in two steps, for a caller that must not block. */
bool wire_start_join(int *socket_p, unsigned wait_ms, char *sentence, unsigned sentence_size);
typedef enum {
    WIRE_WELCOMED,
    WIRE_PENDING, /* no answer so far: try again */
    WIRE_CLOSED,  /* closed without an answer */
    WIRE_REFUSED, /* refused or not understood, with the reason in `sentence` */
} wire_answer_t;
/* The caller owns the socket, also on failure. */
wire_answer_t wire_finish_join(int socket, wire_welcome_result_t *result, char *sentence, unsigned sentence_size);

/* Send a message about a lease. Returns false if it cannot be sent now. */
bool wire_send_lease(int socket, unsigned type, uint32_t gpu, uint32_t flags, uint64_t lease);

typedef enum { WIRE_NOTHING, WIRE_LEASE, WIRE_RECLAIMED, WIRE_MEASURED, WIRE_UNKNOWN, WIRE_END } wire_next_t;
/* Read the next message without waiting. `lease` also receives the answer to MEASURE. */
wire_next_t wire_next(int socket, wire_lease_t *lease);
/* bytes: of a charge on this GPU that was refused, for which memory may be lent; 0: none. */
bool wire_request_reclaim(int socket, uint32_t gpu, uint64_t bytes);

#endif
