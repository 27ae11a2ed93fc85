/* The connection to the arbiter of a process that has joined: messages to it, and the search for the next arbiter
 * when it is gone. Everything is for the helper thread, except arbiter_reclaim and arbiter_measure. */
#ifndef GPUSHARE_ARBITER_H
#define GPUSHARE_ARBITER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/contract.h"
#include "link/wire.h"

/* Use this connection, for a share with this isolation. The second function closes it if joining fails after all. */
void arbiter_begin(int socket, uint32_t isolation);
void arbiter_end(void);
bool arbiter_is_connected(void);

/* Returns false if the message cannot be sent now. */
bool arbiter_send(unsigned type, uint32_t gpu, uint32_t flags, uint64_t lease);

/* Read the next message about a lease. Returns false if there is none. */
bool arbiter_receive(wire_lease_t *message);

/* Without an arbiter: try to reconnect. Returns true once connected; the new arbiter has no state of this process.
 * `map_pages` gets its pages and closes their descriptors; it returns false if they are not this process's pages. */
typedef bool arbiter_map_pages_t(const wire_welcome_result_t *welcome);
bool arbiter_reconnect(arbiter_map_pages_t *map_pages);

/* The descriptor to poll, and the time of the next retry. */
int arbiter_descriptor(void);
uint64_t arbiter_wake_ns(void);

/* From any thread: ask for the bytes of dead processes and wait until they are refunded, at most three seconds. bytes:
 * of a charge on this GPU that was refused, for which the arbiter may raise the limit; 0: none. */
void arbiter_reclaim(uint32_t gpu, uint64_t bytes);

/* Likewise: ask how much of the GPU's memory no process is known to hold, measured after the request. One thread at
 * a time. Returns false without an answer. */
bool arbiter_measure(uint32_t gpu, uint64_t *bytes_p);

#endif
