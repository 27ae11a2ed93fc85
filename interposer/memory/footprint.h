/* The memory that a graph needs while it runs: the pages of its allocations.
 *
 * The driver assigns an address when an allocation node is created, and reuses addresses for allocations that are
 * never alive at the same time. Memory is mapped when the graph is launched. So the number of distinct pages is the
 * most that is mapped at once; the sum of the sizes could be many times larger. */
#ifndef GPUSHARE_FOOTPRINT_H
#define GPUSHARE_FOOTPRINT_H

#include <stdbool.h>

#include "base/contract.h"
#include "driver/hooks.h"

typedef struct {
    uint64_t bytes[MAX_GPUS];
    CUdevice devices[MAX_GPUS]; /* the device number of each GPU with bytes */
    bool any;
} footprint_t;

/* Fails if the graph cannot be examined or needs a GPU outside the share. */
CUresult footprint_of(CUgraph graph, footprint_t *footprint);

#endif
