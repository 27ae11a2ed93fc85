/* The conversation with the arbiter: one SOCK_SEQPACKET connection a process, see contract.h. */
#ifndef GPUSHARE_WIRE_H
#define GPUSHARE_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "contract.h"

typedef struct {
    int socket;
    unsigned slot;
    unsigned gpu_count;
    int limits; /* descriptors, to be mapped and closed */
    int ledger;
} wire_welcome_result_t;

/* Connects and is welcomed. False: `sentence` says why not, and what to do. */
bool wire_join(wire_welcome_result_t *result, char *sentence, unsigned sentence_size);

typedef enum { WIRE_ANSWERED, WIRE_SILENT, WIRE_CLOSED } wire_reclaim_t;

/* Asks for the bytes of dead processes, and waits up to a second for them to be returned. */
wire_reclaim_t wire_reclaim(int socket);

#endif
