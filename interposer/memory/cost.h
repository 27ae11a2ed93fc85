/* The memory that a context takes by itself: charged before its creation and refunded after its end.
 *
 * The agent has measured the amount. It only covers the first seconds: anything that the process holds beyond all
 * its charges is measured and added to the sum then. */
#ifndef GPUSHARE_COST_H
#define GPUSHARE_COST_H

#include "memory/charge.h"

typedef struct {
    place_t place;
    uint64_t bytes; /* 0: nothing was charged */
} cost_t;
#define COST_NONE ((cost_t){.bytes = 0})

/* Charge the context. A result other than CUDA_SUCCESS is the application's result, and was reported. */
CUresult cost_begin(cost_t *cost, CUdevice device);

/* Called after the real call with its result and, on success, the context. */
CUresult cost_end(cost_t *cost, CUresult result, const CUcontext *context);

#endif
