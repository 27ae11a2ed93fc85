/* This process's part of the container's share: its pages, mapped once, then held until the process ends.
 *
 * Pages and limits stay in force when the arbiter goes away; only the bytes of dead processes are not given back then.
 * The child of a fork has no part until it joins for itself: its slot must be its own. */
#ifndef GPUSHARE_SHARE_H
#define GPUSHARE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "link/wire.h"

/* A GPU that the share has no record of. */
#define SHARE_NO_GPU UINT32_MAX

/* Maps the pages that this process was welcomed with, whose descriptors are closed. False: they cannot be mapped, and
 * are to be given up by share_unmap. */
bool share_map(const wire_welcome_result_t *welcome);
void share_unmap(void);
bool share_is_mapped(void);

/* The functions below are for a process that has its pages. */
uint32_t share_find_gpu(const uint8_t uuid[16]);

/* False: the container would hold more than its limit, and nothing is charged. Before that it is tried again, and the
 * arbiter is asked whether a dead process still holds something. */
bool share_charge(uint32_t gpu, uint64_t bytes);
/* The same, tried once and at once. */
bool share_try_charge(uint32_t gpu, uint64_t bytes);
/* What is done before the last try, by itself: may take as long as the arbiter. */
void share_reclaim(void);
void share_refund(uint32_t gpu, uint64_t bytes);

/* What is charged and certainly there: see quota.h. */
bool share_certain(uint32_t gpu, uint64_t bytes);
void share_uncertain(uint32_t gpu, uint64_t bytes);
/* Whether the arbiter that is there now looks for it. */
bool share_tracks_certain(void);

/* What this share is given of a GPU's time, in percent. */
unsigned share_request_percent(uint32_t gpu);
/* When it may launch in each period while there is no arbiter. False: nothing is said about it. */
bool share_turn(uint32_t gpu, uint64_t period_ns, uint64_t *begin_ns_p, uint64_t *length_ns_p);
uint32_t share_gpu_count(void);

/* For the helper thread: what it was welcomed with when it has connected again. The pages' descriptors are closed.
 * False: what it was welcomed to is not what we hold. */
bool share_rejoin(const wire_welcome_result_t *welcome);

uint64_t share_limit_bytes(uint32_t gpu);
uint64_t share_used_bytes(uint32_t gpu);

/* What a context on this GPU is known to take of its memory; 0: not known. */
uint64_t share_context_bytes(uint32_t gpu);

#endif
