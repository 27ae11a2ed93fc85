/* The gate: where launches wait until the container has the lease of their GPU.
 *
 * gate_word is what every launch looks at. It is WIDE_OPEN when all GPUs that this process uses may be used freely, and
 * then nothing more is done; otherwise a launch looks at the gate of its own GPU (launch.c). Only the helper thread
 * opens and closes gates; other threads only ever take WIDE_OPEN back.
 *
 * A launch that has passed when the gate closes is still on its way to the driver: one a thread, which is not waited
 * for. It counts as work of the next lease. */
#ifndef GPUSHARE_GATE_H
#define GPUSHARE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define GATE_WIDE_OPEN 1u
extern uint32_t gate_word;

/* Before anything can come to a gate: `tell` is called by each launch that begins to wait, or goes on waiting. */
typedef void gate_notify_t(void);
void gate_begin(gate_notify_t *notify);

/* There may be work on this GPU from now on. */
void gate_mark_used(uint32_t gpu);
bool gate_is_used(uint32_t gpu);

/* A launch comes to the gate of a GPU, to be counted for as many as it says, and returns when that is open. How many
 * have come, with the first of them. */
uint64_t gate_enter(uint32_t gpu, unsigned count);

/* Until the gate is open, for a launch that has been counted, or that need not be. */
void gate_wait(uint32_t gpu);

/* For the helper thread: `counted`: every launch is to come to the gate, to be counted and kept from running ahead;
 * `brief`: still less far, for somebody may have to be served at once. */
void gate_open(uint32_t gpu, bool counted, bool brief);
void gate_close(uint32_t gpu);
bool gate_is_open(uint32_t gpu);
bool gate_is_counted(uint32_t gpu);
bool gate_is_brief(uint32_t gpu);
bool gate_is_single(void);              /* this process uses one GPU */
uint32_t gate_open_count(uint32_t gpu); /* how often */
bool gate_has_waiters(uint32_t gpu);
/* How many launches have come by, or have a pass; whatever comes by after this changes it. It is counted before the
 * gate is looked at: if it has not changed after a close, nothing has slipped through. For the helper thread. */
uint64_t gate_launches(uint32_t gpu);
uint64_t gate_passed(uint32_t gpu); /* without those that wait */

#endif
