/* What keeps memory to hand it out again: the driver's pools, and what it has for the nodes of graphs.
 *
 * A keeper is charged for what it has of the GPU, which the driver tells, and not for what it has handed out. Around a
 * call that may make it grow, what the call may take is charged before, and the difference to what it took goes back
 * after; one lock a GPU, held meanwhile, keeps two calls from taking each other's growth for their own. A keeper
 * shrinks when the driver likes: it is looked at again before anything is refused, and after a program has waited. */
#ifndef GPUSHARE_KEEPER_H
#define GPUSHARE_KEEPER_H

#include <stdbool.h>

#include "driver/hooks.h"

typedef enum {
    KEEPER_NONE,
    KEEPER_POOL,
    KEEPER_GRAPHS,  /* of one device, of which `handle` is the number */
    KEEPER_ENDING,  /* a pool that has been destroyed: it ends with the last of its blocks */
    KEEPER_FOREIGN, /* memory of the host, or of the process that it was imported from */
    KEEPER_MUTE,    /* a pool of a driver that cannot tell its size */
} keeper_kind_t;

typedef struct {
    keeper_kind_t kind;
    uint32_t gpu;            /* KEEPER_ANY_GPU: not known before its first allocation */
    uint64_t handle;         /* the pool, or the device */
    uint64_t charged_bytes;  /* with the lock held */
    uint64_t unit_bytes;     /* it grows by multiples of this, as far as is known */
    uint64_t wanted_bytes;   /* of the call that is under way, before it was made whole units */
    uint64_t out_bytes;      /* handed out, or wanted by graphs that have been launched */
    uint64_t orphaned_bytes; /* of graphs: what may outlive the executable graph that took it */
    uint64_t blocks;         /* of a pool: how many are handed out */
} keeper_t;

#define KEEPER_ANY_GPU (UINT32_MAX - 1)

/* The keeper of this kind or, if there is none yet, a new one. NULL: there are too many. */
keeper_t *keeper_find(keeper_kind_t kind, uint64_t handle);
keeper_t *keeper_add(keeper_kind_t kind, uint64_t handle, uint32_t gpu);
void keeper_remove(keeper_t *keeper);

void keeper_lock(uint32_t gpu);
void keeper_unlock(uint32_t gpu);

/* The four attempts at a call that may grow a keeper, each after more has been done to make room. Before an attempt
 * nothing is locked; keeper_make_room locks and does what that attempt is preceded by. */
typedef enum { ATTEMPT_AT_ONCE, ATTEMPT_REREAD, ATTEMPT_TRIMMED, ATTEMPT_WAITED, ATTEMPTS } attempt_t;
void keeper_make_room(uint32_t gpu, attempt_t attempt);

/* With the lock held: charges what growing by `bytes` may take; tells how much that was. False: it does not fit. */
bool keeper_reserve(keeper_t *keeper, uint64_t bytes, attempt_t attempt, uint64_t *reserved_bytes_p);

/* With the lock held, after the call: from what was reserved to what it took. False: it took more than was reserved,
 * and that does not fit. */
bool keeper_settle(keeper_t *keeper, uint64_t reserved_bytes);

/* Something of a keeper's has been given back, and may be with the driver once the program has waited for it. */
void keeper_loosened(void);
void keeper_waited(void);

/* As ATTEMPT_REREAD and ATTEMPT_TRIMMED, for others who charge this GPU. False: there was nothing to give back. */
void keeper_reread(uint32_t gpu);
bool keeper_give_back(uint32_t gpu);

#endif
