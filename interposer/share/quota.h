/* How much of a limit is taken. No CUDA types, no locks, no I/O.
 *
 * Every process of the container has a slot, and what the container holds is the sum of the slots; there is no total
 * that could disagree with them. To charge, a process adds to its own slot first and looks at the sum after: if that is
 * over the limit it takes its bytes back.
 *
 * Why what is granted never exceeds the limit. All accesses are sequentially consistent, so there is one order of them
 * all. Suppose the bytes granted and not yet refunded exceeded the limit at some moment. Of the charges that make them
 * up, take the one whose addition is last in the order. It read the slots after its addition, so after all the others'
 * additions; and before that moment, so before any of their refunds. Its sum had them all, exceeded the limit, and the
 * charge was refused: a contradiction. A slot it might have missed is one that was handed out later; slot_count is read
 * after the addition, and the arbiter raises it before it gives a process its slot, so a process that was not counted
 * had not added anything yet.
 *
 * To the slots is added what the agent has measured that the processes hold beyond them: contexts, modules. It can push
 * the sum beyond the limit, and then nothing more is granted; it only ever makes a sum larger, so the above stands.
 *
 * Two charges at once may both be refused where one would have fitted; the caller tries again. */
#ifndef GPUSHARE_QUOTA_H
#define GPUSHARE_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/contract.h"

typedef struct {
    ledger_page_t *ledger;       /* of one GPU, shared by the processes of the container */
    const limits_page_t *limits; /* written by the arbiter, which may change a limit at any time */
    unsigned gpu;                /* the record in `limits` */
    unsigned slot;               /* of this process */
    unsigned certain_slot;       /* as the limits said when this process joined: it never changes */
} quota_t;

/* False: over the limit, and nothing is taken. */
bool quota_charge(const quota_t *quota, uint64_t bytes);
void quota_refund(const quota_t *quota, uint64_t bytes);

/* Of what is charged, so much does the driver have now, and nobody has asked it yet to free any of it: said in the
 * ledger for the agent, who can tell by it what nobody holds. The second is said before the driver is asked. False:
 * nobody looks for it, and nothing is said. */
bool quota_certain(const quota_t *quota, uint64_t bytes);
void quota_uncertain(const quota_t *quota, uint64_t bytes);

/* What all processes of the container hold together, with what was measured beyond their charges, and may hold. */
uint64_t quota_used_bytes(const quota_t *quota);
uint64_t quota_limit_bytes(const quota_t *quota);

#endif
