/* Memory that graphs allocate when launched. Before a launch the library charges what it may take, and afterwards
 * what the driver holds for graphs. A graph keeps the memory of its first launch until another graph gets it.
 *
 * Graphs without allocations cost nothing here: until a program adds the first allocation to a graph, launches go
 * straight from the gate to the driver. */
#ifndef GPUSHARE_GRAPH_H
#define GPUSHARE_GRAPH_H

#include "base/table.h"
#include "memory/footprint.h"

/* Start tracking graphs, because an allocation becomes a node of one. */
void graph_begin_tracking(void);
bool graph_is_tracking(void);

/* Record what an executable graph needs. Returns false if there is no memory for the record. */
bool graph_record(CUgraphExec exec, const footprint_t *footprint);

/* Around a call that destroys or changes an executable graph: detach its record, then drop it, or restore it in
 * place of what was recorded since. */
typedef struct {
    entry_t entries[MAX_GPUS]; /* key 0: none */
} detached_t;
void graph_detach(CUgraphExec exec, detached_t *detached);
void graph_drop(const detached_t *detached);
void graph_reattach(CUgraphExec exec, const detached_t *detached);

/* Charge for a launch or an upload and run it. */
CUresult graph_start(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream, bool per_thread);

#endif
