/* Leases: when the gates open and close by them, and when they go back. All of it is for the helper thread.
 *
 *   closed ─ a launch waits: WANT → ── OPEN → open ── REVOKE → closed: CLOSED → ── nothing runs: RELEASED →
 *                                         └── nothing to do while others wait: RELEASED → */
#ifndef GPUSHARE_LEASE_H
#define GPUSHARE_LEASE_H

#include <stdint.h>

/* What the arbiter says. Lease 0: whichever there is. */
void lease_open(uint32_t gpu, uint32_t flags, uint64_t number);
void lease_revoke(uint32_t gpu, uint64_t number);

/* Asks for a lease, gives one back, or waits; after how many nanoseconds it is to be looked at again at the latest. */
uint64_t lease_poll(uint32_t gpu);

/* A new arbiter knows nothing: it is told what we hold, and asked for what we wait for. */
void lease_rejoin(uint32_t gpu);

#endif
