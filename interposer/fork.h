/* What a fork means here: the child begins anew. */
#ifndef GPUSHARE_FORK_H
#define GPUSHARE_FORK_H

#include <stdbool.h>

/* From now on a child of this process starts without a share and without memory of its parent's allocations. */
bool fork_watch(void);

/* What the child does, in the files whose state it is. */
void share_after_fork(void);
void device_after_fork(void);
void charge_after_fork(void);
void context_after_fork(void);
void pool_after_fork(void);
void physical_after_fork(void);
void keeper_after_fork(void);
void graph_after_fork(void);
void gate_after_fork(void);
void helper_after_fork(void);
void arbiter_after_fork(void);
void lease_after_fork(void);
void marker_after_fork(void);
void capture_after_fork(void);

#endif
