/* The connection to the arbiter, once this process has joined: what is said to it, and how the next one is found when
 * it has gone. All but the reclaiming is for the helper thread. */
#ifndef GPUSHARE_ARBITER_H
#define GPUSHARE_ARBITER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/contract.h"
#include "link/wire.h"

/* From now on this is the connection; or there is to be none after all, and it is closed. */
void arbiter_begin(int socket);
void arbiter_end(void);
bool arbiter_is_connected(void);

/* False: it cannot be said now. */
bool arbiter_send(unsigned type, uint32_t gpu, uint32_t flags, uint64_t lease);

/* What it says of a lease, if it has said anything more. */
bool arbiter_receive(wire_lease_t *message);

/* While there is none: true when there is one again, which knows nothing of this process. `take_pages` is given the
 * pages that it sends, and closes their descriptors; false: they are not those of this process. */
typedef bool arbiter_map_pages_t(const wire_welcome_result_t *welcome);
bool arbiter_reconnect(arbiter_map_pages_t *map_pages);

/* Where something will be heard, and when there is something to do although nothing was. */
int arbiter_descriptor(void);
uint64_t arbiter_wake_ns(void);

/* From any thread: asks for the bytes of dead processes, and waits until they are back, for up to three seconds. */
void arbiter_reclaim(void);

/* The same for how much of a GPU's memory is nobody known to hold, as it is found from now on. One thread at a time.
 * False: there was no answer. */
bool arbiter_measure(uint32_t gpu, uint64_t *bytes_p);

#endif
