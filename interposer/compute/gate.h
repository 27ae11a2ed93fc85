/* The gate, where launches wait until the container has the lease of their GPU.
 *
 * Every launch reads gate_word. If it is WIDE_OPEN, the process may use all of its GPUs freely, and the launch does
 * nothing else. Otherwise the launch checks its own GPU's gate (launch.c). Only the helper thread opens and closes
 * gates; other threads can only clear WIDE_OPEN.
 *
 * A launch that has just passed when the gate closes is still on its way to the driver, at most one per thread. The
 * library does not wait for it; it counts as work of the next lease. */
#ifndef GPUSHARE_GATE_H
#define GPUSHARE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define GATE_WIDE_OPEN 1u
extern uint32_t gate_word;

/* Called before any launch. `notify` is called by each launch that waits, again after every timeout. */
typedef void gate_notify_t(void);
void gate_begin(gate_notify_t *notify);

/* Note that this process may have work on the GPU. */
void gate_mark_used(uint32_t gpu);
bool gate_is_used(uint32_t gpu);

/* Count `count` launches at the GPU's gate and wait until it is open. Returns the number of launches so far, with
 * the first of these. */
uint64_t gate_enter(uint32_t gpu, unsigned count);

/* Wait until the gate is open, for a launch that is already counted or need not be. */
void gate_wait(uint32_t gpu);

/* For the helper thread. `counted`: every launch is counted at the gate and limited in how far it runs ahead.
 * `brief`: limited further, because a share of the latency class may need the GPU at any time. */
void gate_open(uint32_t gpu, bool counted, bool brief);
void gate_close(uint32_t gpu);
bool gate_is_open(uint32_t gpu);
bool gate_is_counted(uint32_t gpu);
bool gate_is_brief(uint32_t gpu);
bool gate_is_single(void);              /* whether this process uses one GPU */
uint32_t gate_open_count(uint32_t gpu); /* how often the gate has opened */
bool gate_has_waiters(uint32_t gpu);
/* Return the number of launches that were counted, including those in passes. Launches are counted before they read
 * the gate, so if the number is the same after closing it, no launch has slipped through. For the helper thread. */
uint64_t gate_launches(uint32_t gpu);
uint64_t gate_passed(uint32_t gpu); /* without the launches that wait */

#endif
