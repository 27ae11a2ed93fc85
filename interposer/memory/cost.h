/* What a context takes of a GPU's memory without anybody's asking for it: charged before the context is made, given
 * back when it goes.
 *
 * How much that is, the agent has learned by measuring. It is no more than a beginning: what a process holds beyond it,
 * and beyond all else that it has charged, is measured and added to the sum within seconds. */
#ifndef GPUSHARE_COST_H
#define GPUSHARE_COST_H

#include "memory/charge.h"

typedef struct {
    place_t place;
    uint64_t bytes; /* 0: nothing was charged */
} cost_t;
#define COST_NONE ((cost_t){.bytes = 0})

/* SUCCESS: charged. Otherwise what the application gets in place of a context; a line on stderr says why. */
CUresult cost_begin(cost_t *cost, CUdevice device);

/* After the real call, which gave `result` and, if that is SUCCESS, the context. */
CUresult cost_end(cost_t *cost, CUresult result, const CUcontext *context);

#endif
