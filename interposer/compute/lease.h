/* Leases: they decide when gates open and close, and are returned to the arbiter. Everything is for the helper
 * thread.
 *
 *   closed ─ a launch waits: WANT → ── OPEN → open ── REVOKE → closed: CLOSED → ── no work pending: RELEASED →
 *                                         └── idle while others wait: RELEASED → */
#ifndef GPUSHARE_LEASE_H
#define GPUSHARE_LEASE_H

#include <stdint.h>

/* Messages from the arbiter. Number 0: any lease. */
void lease_open(uint32_t gpu, uint32_t flags, uint64_t number);
void lease_revoke(uint32_t gpu, uint64_t number);

/* Request a lease, return one, or wait. Returns the longest time until the next poll, in nanoseconds. */
uint64_t lease_poll(uint32_t gpu);

/* Report this process's leases, and those it needs, to a new arbiter. */
void lease_rejoin(uint32_t gpu);

#endif
