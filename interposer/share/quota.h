/* Charges against a memory limit. No CUDA types, no locks, no I/O.
 *
 * Each process of the container has a slot, and the container's use is the sum of the slots, so there is no separate
 * total that could disagree. To charge, a process first adds to its own slot and then computes the sum. If the sum
 * exceeds the limit, it takes the bytes back.
 *
 * Granted bytes never exceed the limit. Proof: all accesses are sequentially consistent, so they have one order.
 * Suppose that at some moment the bytes granted and not yet refunded exceeded the limit. Among the charges that make
 * them up, consider the one whose addition is last in the order. It read the slots after its own addition, so after
 * the additions of all the others, and before that moment, so before any of their refunds. Its sum included them all
 * and exceeded the limit, so the charge was refused: a contradiction. It cannot have missed a slot that was assigned
 * later. slot_count is read after the addition, and the arbiter raises it before it assigns a slot, so a process
 * that was not counted had not added anything.
 *
 * The sum also includes what the agent has measured beyond the slots, such as contexts and modules. This can push
 * the sum over the limit, and then nothing more is granted. It only increases sums, so the proof holds.
 *
 * Two simultaneous charges may both be refused although one would fit. The caller tries again. */
#ifndef GPUSHARE_QUOTA_H
#define GPUSHARE_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/contract.h"

typedef struct {
    ledger_page_t *ledger;       /* of one GPU, shared by the container's processes */
    const limits_page_t *limits; /* written by the arbiter, which may change limits at any time */
    unsigned gpu;                /* index of the record in `limits` */
    unsigned slot;               /* this process's slot */
    unsigned certain_slot;       /* from the limits page at the time of joining; never changes */
} quota_t;

/* Returns false, and charges nothing, if the limit would be exceeded. */
bool quota_charge(const quota_t *quota, uint64_t bytes);
void quota_refund(const quota_t *quota, uint64_t bytes);

/* Publish how many of the charged bytes the driver certainly holds, because no call to free them has been made. The
 * agent uses this to find memory that no process holds. quota_uncertain must be called before the driver is asked to
 * free. quota_certain returns false, and publishes nothing, if the arbiter does not use it. */
bool quota_certain(const quota_t *quota, uint64_t bytes);
void quota_uncertain(const quota_t *quota, uint64_t bytes);

/* The use of all processes of the container, including what was measured beyond their charges, and their limit. */
uint64_t quota_used_bytes(const quota_t *quota);
uint64_t quota_limit_bytes(const quota_t *quota);
/* The limit up to which the arbiter may lend memory; 0: it does not. */
uint64_t quota_burst_bytes(const quota_t *quota);

#endif
