/* The conversation with the arbiter: one SOCK_SEQPACKET connection a process, see contract.h. It is of the newest
 * version of the protocol that both speak, which each WELCOME says again. */
#ifndef GPUSHARE_WIRE_H
#define GPUSHARE_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/contract.h"

typedef struct {
    int socket;
    unsigned slot;
    unsigned gpu_count;
    int limits; /* descriptors, to be mapped and closed */
    int ledger;
} wire_welcome_result_t;

/* Connects and is welcomed. False: `sentence` says why not, and what to do. */
bool wire_join(wire_welcome_result_t *result, char *sentence, unsigned sentence_size);

/* The same in two steps, for whoever must not wait in between. */
bool wire_start_join(int *socket_p, unsigned wait_ms, char *sentence, unsigned sentence_size);
typedef enum {
    WIRE_WELCOMED,
    WIRE_PENDING, /* no answer: to be asked again */
    WIRE_CLOSED,  /* no answer, and there will be none */
    WIRE_REFUSED, /* refused, or not understood: `sentence` says why */
} wire_answer_t;
/* The socket is the caller's, also on failure. */
wire_answer_t wire_finish_join(int socket, wire_welcome_result_t *result, char *sentence, unsigned sentence_size);

/* Leases. False: it cannot be sent now. */
bool wire_send_lease(int socket, unsigned type, uint32_t gpu, uint32_t flags, uint64_t lease);

typedef enum { WIRE_NOTHING, WIRE_LEASE, WIRE_RECLAIMED, WIRE_MEASURED, WIRE_UNKNOWN, WIRE_END } wire_next_t;
/* The next message, without waiting for one. Also an answer about what was measured is in `lease`. */
wire_next_t wire_next(int socket, wire_lease_t *lease);
bool wire_request_reclaim(int socket);

#endif
