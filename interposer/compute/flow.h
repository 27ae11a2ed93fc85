/* How far launches may run ahead of the GPU: a few milliseconds of work, in every other batch of launches waited for.
 * Beside a share of the latency class batches are smaller, and every one is waited for.
 *
 * Without this a program that never waits would have a thousand kernels in the driver's queue when it is to give the
 * GPU back. How many launches make a batch is learned from how long the batches take. */
#ifndef GPUSHARE_FLOW_H
#define GPUSHARE_FLOW_H

#include "driver/hooks.h"

/* How many launches may be counted at once, after so many others: none of them is the first of a batch. */
unsigned flow_pass_size(uint32_t gpu, uint64_t launches);

/* Before a launch in that context, of which there have been `launches` with this one; may wait, but for no other thread
 * that is here. */
void flow_launch(uint32_t gpu, CUcontext context, CUstream stream, uint64_t launches);

/* How long what is queued will run from now, at most, as far as batches tell; UINT64_MAX: nobody knows. */
uint64_t flow_remaining_ns(uint32_t gpu, uint64_t launches);

/* The context is left alone; then it has ended, and its events with it, or it has not. */
void flow_suspend(CUcontext context);
void flow_drop(CUcontext context);
void flow_resume(CUcontext context);

#endif
