/* Limits how far launches may run ahead of the GPU: a few milliseconds of work. Launches are grouped into batches,
 * and every other batch is waited for. While a share of the latency class uses the GPU, batches are smaller and each
 * is waited for.
 *
 * Without this, a program that never waits would have a thousand kernels queued in the driver when it has to return
 * the GPU. The size of a batch is learned from the duration of earlier ones. */
#ifndef GPUSHARE_FLOW_H
#define GPUSHARE_FLOW_H

#include "driver/hooks.h"

/* Return how many launches may be counted at once, after `launches` others. None of them begins a batch. */
unsigned flow_pass_size(uint32_t gpu, uint64_t launches);

/* Called before launch number `launches` in this context. May wait for the GPU, but never for another thread. */
void flow_launch(uint32_t gpu, CUcontext context, CUstream stream, uint64_t launches);

/* Return an upper estimate of how long queued work will still run; UINT64_MAX: unknown. */
uint64_t flow_remaining_ns(uint32_t gpu, uint64_t launches);

/* Around a call that may end the context. Between them its events are not used. flow_drop: it has ended;
 * flow_resume: it has not. */
void flow_suspend(CUcontext context);
void flow_drop(CUcontext context);
void flow_resume(CUcontext context);

#endif
