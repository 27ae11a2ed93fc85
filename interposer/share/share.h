/* This process's part of the container's share: its pages, mapped once and kept until the process ends.
 *
 * Pages and limits stay in force when the arbiter is gone; only the bytes of dead processes are not refunded then. A
 * forked child has no part until it joins, because it needs its own slot. */
#ifndef GPUSHARE_SHARE_H
#define GPUSHARE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "link/wire.h"

/* A GPU that the share does not include. */
#define SHARE_NO_GPU UINT32_MAX

/* Map the pages that came with WELCOME and close their descriptors. After a failure, call share_unmap. */
bool share_map(const wire_welcome_result_t *welcome);
void share_unmap(void);
bool share_is_mapped(void);

/* The functions below require mapped pages. */
uint32_t share_find_gpu(const uint8_t uuid[16]);

/* Charge the bytes. Returns false, and charges nothing, if the container would exceed its limit even after a second
 * try and after the arbiter has refunded the bytes of dead processes and lent what it can. Asks it again, up to
 * eight times in all, while it raises the limit. */
bool share_charge(uint32_t gpu, uint64_t bytes);
/* A single try, without waiting. */
bool share_try_charge(uint32_t gpu, uint64_t bytes);
/* The step before the last try of share_charge. Waits for the arbiter, which may lend what this thread was refused. */
void share_reclaim(void);
void share_refund(uint32_t gpu, uint64_t bytes);

/* Certain bytes: see quota.h. */
bool share_certain(uint32_t gpu, uint64_t bytes);
void share_uncertain(uint32_t gpu, uint64_t bytes);
/* Whether the current arbiter uses certain bytes. */
bool share_tracks_certain(void);

/* The share's requested part of the GPU's time, in percent. */
unsigned share_request_percent(uint32_t gpu);
/* When the share may launch in each period while there is no arbiter. Returns false if the limits page does not say. */
bool share_turn(uint32_t gpu, uint64_t period_ns, uint64_t *begin_ns_p, uint64_t *length_ns_p);
uint32_t share_gpu_count(void);
/* How the share is limited, since this process joined. */
const wire_isolation_t *share_isolation(void);

/* For the helper thread, after a reconnect: use the new limits page. Closes the descriptors of the pages. Returns
 * false if slot or ledger differ from the mapped ones. */
bool share_rejoin(const wire_welcome_result_t *welcome);

uint64_t share_limit_bytes(uint32_t gpu);
/* The limit up to which the arbiter may lend memory; 0: it does not. The larger of both limits. */
uint64_t share_burst_bytes(uint32_t gpu);
uint64_t share_most_bytes(uint32_t gpu);
uint64_t share_used_bytes(uint32_t gpu);

/* The memory that a context on this GPU is known to take; 0: unknown. */
uint64_t share_context_bytes(uint32_t gpu);

#endif
