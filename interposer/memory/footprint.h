/* How much memory a graph needs while it runs: the pages that its allocations are in.
 *
 * The driver gives each allocation its address when the node is made, and the same address to allocations that are
 * never there at the same time; memory is behind the pages when the graph is launched. So the sum of the sizes may be
 * many times too much, and the number of different pages is what can be behind them at once. */
#ifndef GPUSHARE_FOOTPRINT_H
#define GPUSHARE_FOOTPRINT_H

#include <stdbool.h>

#include "base/contract.h"
#include "driver/hooks.h"

typedef struct {
    uint64_t bytes[MAX_GPUS];
    CUdevice devices[MAX_GPUS]; /* where bytes are */
    bool any;
} footprint_t;

/* What is not SUCCESS: the graph cannot be looked at, or needs a GPU that is not the share's. */
CUresult footprint_of(CUgraph graph, footprint_t *footprint);

#endif
