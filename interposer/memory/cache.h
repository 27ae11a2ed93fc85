/* What keeps memory to hand it out again: the driver's pools, and what it has for the nodes of graphs.
 *
 * A keeper is charged for what it has of the GPU, which the driver tells, and not for what it has handed out. Around a
 * call that may make it grow, what the call may take is charged before, and what it did not take goes back after. The
 * lock, one a GPU, is held for the books and for questions that the driver answers at once, never across such a call:
 * a launch waits when the GPU has too much to do, and what it waits for may be up to another thread, which has to get
 * past here. So several calls may be under way, and a keeper has at most what it is charged and what was reserved for
 * all of them. A keeper shrinks when the driver likes: it is looked at again before anything is refused, and after a
 * program has waited. */
#ifndef GPUSHARE_CACHE_H
#define GPUSHARE_CACHE_H

#include <stdbool.h>

#include "driver/hooks.h"

typedef enum {
    CACHE_NONE,
    CACHE_POOL,
    CACHE_GRAPHS,     /* of one device, of which `handle` is the number */
    CACHE_CLOSING,    /* a pool that is being destroyed: the driver is not asked about it any more */
    CACHE_ENDING,     /* a pool that has been destroyed: it ends with the last of its blocks */
    CACHE_FOREIGN,    /* memory of the host, or of the process that it was imported from */
    CACHE_UNREADABLE, /* a pool of a driver that cannot tell its size */
} cache_kind_t;

/* Found without a lock: `kind` is stored last when a keeper is made, with release, and read with acquire before the
 * handle and after it, so whoever finds it sees all else of that one. `gpu` and `out_bytes` change later, each by
 * itself: only their own order matters. All else is with the lock held. */
typedef struct {
    _Atomic cache_kind_t kind;
    _Atomic uint32_t gpu;       /* KEEPER_ANY_GPU: not known before its first allocation */
    _Atomic uint64_t handle;    /* the pool, or the device; as long as it is of this kind */
    _Atomic uint64_t out_bytes; /* handed out, or wanted by graphs that have been launched */
    _Atomic uint64_t blocks;    /* of a pool: how many are handed out */
    uint64_t charged_bytes;
    uint64_t unit_bytes;     /* it grows by multiples of this, as far as is known */
    uint64_t orphaned_bytes; /* of graphs: what may outlive the executable graph that took it */
    uint64_t reserved_bytes; /* for the calls that are under way */
    uint64_t wanted_bytes;   /* by them */
    unsigned calls;          /* how many there are */
    bool overlapped;         /* there were several at once since there were none */
    unsigned pollers;        /* threads that ask the driver about it without the lock */
} cache_t;

#define CACHE_ANY_GPU (UINT32_MAX - 1)

/* The keeper of this kind or, if there is none yet, a new one. NULL: there are too many. */
cache_t *cache_find(cache_kind_t kind, uint64_t handle);
cache_t *cache_add(cache_kind_t kind, uint64_t handle, uint32_t gpu);
void cache_remove(cache_t *cache);

void cache_lock(uint32_t gpu);
void cache_unlock(uint32_t gpu);

/* The attempts at a call that may grow a keeper, each after more has been done to make room. */
typedef enum {
    ATTEMPT_FIRST,
    ATTEMPT_REREAD,
    ATTEMPT_TRIMMED,
    ATTEMPT_RECLAIMED, /* the arbiter has looked for what dead processes held */
    ATTEMPT_WAITED,    /* for the GPU */
    ATTEMPTS
} attempt_t;
/* Does what an attempt is preceded by, with no lock held. */
void cache_make_room(uint32_t gpu, attempt_t attempt);

/* A call that may grow a keeper. */
typedef struct {
    uint64_t wanted_bytes;   /* before it was made whole units */
    uint64_t reserved_bytes; /* of them, what it may make the keeper grow by */
} growth_t;

/* With the lock held: charges what growing by `bytes` may take. False: it does not fit. */
bool cache_reserve(cache_t *cache, uint64_t bytes, uint64_t *reserved_bytes_p);

/* With the lock held, before and after a call for which so much was reserved; in between without it. False: keepers
 * took more than was reserved, and that does not fit. */
void cache_begin_growth(cache_t *cache, const growth_t *growth);
bool cache_end_growth(cache_t *cache, const growth_t *growth);

/* A pool about to be destroyed. From the first on nobody asks the driver about it; the second says how that ended.
 * With no lock held. */
void cache_begin_destroy(cache_t *cache);
void cache_end_destroy(cache_t *cache, cache_kind_t kind);

/* Something of a keeper's has been given back, and may be with the driver once the program has waited for it. */
void cache_note_free(void);
void cache_note_sync(void);

/* As ATTEMPT_REREAD and ATTEMPT_TRIMMED, for others who charge this GPU. False: there was nothing to give back. */
void cache_refresh(uint32_t gpu);
bool cache_trim(uint32_t gpu);

/* How often keepers have begun or ended to grow; and what they have, all of it since that was the number, or 0. */
uint64_t cache_growth_count(uint32_t gpu);
uint64_t cache_stable_bytes(uint32_t gpu, uint64_t growths);

#endif
