/* Memory that graphs take when they are launched: charged before the launch, for what it may take, and then for what
 * the driver has for graphs. A graph that was launched before has its memory, unless another one has been given it.
 *
 * A graph without allocations costs nothing here: until the first allocation is put into one, launches go from the gate
 * to the driver as ever. */
#ifndef GPUSHARE_GRAPH_H
#define GPUSHARE_GRAPH_H

#include "base/table.h"
#include "memory/footprint.h"

/* An allocation becomes a node of a graph: from now on graphs are looked at. */
void graph_begin_tracking(void);
bool graph_is_tracking(void);

/* What an executable graph needs. False: no memory to note it in. */
bool graph_record(CUgraphExec exec, const footprint_t *footprint);

/* Around its end, and around a change of it: what it needed so far is set aside, then it is dropped, or given back to
 * it in place of what was noted since. */
typedef struct {
    entry_t entries[MAX_GPUS]; /* key 0: none */
} detached_t;
void graph_detach(CUgraphExec exec, detached_t *detached);
void graph_drop(const detached_t *detached);
void graph_reattach(CUgraphExec exec, const detached_t *detached);

/* A launch or an upload, charged for. */
CUresult graph_start(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream, bool per_thread);

#endif
