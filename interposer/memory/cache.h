/* Memory that the driver caches in order to hand it out again: pools, and the memory of graphs' nodes.
 *
 * A cache is charged for what it holds on the GPU, which the driver reports, and not for what it has handed out. A
 * call that may make it grow is charged in advance for what it may take, and the rest is refunded afterwards. There
 * is one lock per GPU. It protects the figures and is held for queries that the driver answers at once, but never
 * across such a call: a launch waits while the GPU's queue is full, and the work that it waits for may depend on
 * another thread, which needs the lock. So several calls may be in progress, and a cache holds at most its charge
 * plus the reservations of all of them. The driver may shrink a cache at any time, so it is queried again before
 * anything is refused, and after the program has waited for the GPU. */
#ifndef GPUSHARE_CACHE_H
#define GPUSHARE_CACHE_H

#include <stdbool.h>

#include "driver/hooks.h"

typedef enum {
    CACHE_NONE,
    CACHE_POOL,
    CACHE_GRAPHS,     /* graphs on one device; `handle` is the device number */
    CACHE_CLOSING,    /* a pool that is being destroyed and must not be queried */
    CACHE_ENDING,     /* a destroyed pool, until its last block is freed */
    CACHE_FOREIGN,    /* host memory, or memory imported from another process */
    CACHE_UNREADABLE, /* a pool whose size the driver cannot report */
} cache_kind_t;

/* Found without a lock. On creation `kind` is stored last, with release; readers load it with acquire before and
 * after the handle, so they see all other fields of that entry. `gpu`, `out_bytes` and `blocks` change later, each
 * independently. All other fields require the lock. */
typedef struct {
    _Atomic cache_kind_t kind;
    _Atomic uint32_t gpu;       /* CACHE_ANY_GPU: unknown before its first allocation */
    _Atomic uint64_t handle;    /* the pool or the device number, depending on `kind` */
    _Atomic uint64_t out_bytes; /* handed out, or needed by graphs that were launched */
    _Atomic uint64_t blocks;    /* number of a pool's blocks that are handed out */
    uint64_t charged_bytes;
    uint64_t unit_bytes;     /* it grows by multiples of this, as far as known */
    uint64_t orphaned_bytes; /* for graphs: may outlive the executable graph that took it */
    uint64_t reserved_bytes; /* charged in advance for calls in progress */
    uint64_t wanted_bytes;   /* requested by these calls */
    unsigned calls;          /* their number */
    bool overlapped;         /* several calls have overlapped since there was none */
    unsigned pollers;        /* threads that are trimming it without the lock */
} cache_t;

#define CACHE_ANY_GPU (UINT32_MAX - 1)

/* Find the entry; cache_add creates it if needed and returns NULL if there are too many. */
cache_t *cache_find(cache_kind_t kind, uint64_t handle);
cache_t *cache_add(cache_kind_t kind, uint64_t handle, uint32_t gpu);
void cache_remove(cache_t *cache);

void cache_lock(uint32_t gpu);
void cache_unlock(uint32_t gpu);

/* Attempts at a call that may grow a cache. Before each, more is done to make room. */
typedef enum {
    ATTEMPT_FIRST,
    ATTEMPT_REREAD,
    ATTEMPT_TRIMMED,
    ATTEMPT_RECLAIMED, /* the arbiter has refunded the bytes of dead processes */
    ATTEMPT_WAITED,    /* the GPU has finished earlier work */
    ATTEMPTS
} attempt_t;
/* Make room for this attempt. No lock may be held. */
void cache_make_room(uint32_t gpu, attempt_t attempt);

/* A call that may grow a keeper. */
typedef struct {
    uint64_t wanted_bytes;   /* before rounding */
    uint64_t reserved_bytes; /* the most by which the cache may grow */
} growth_t;

/* With the lock held: charge the growth for `bytes` in advance. Returns false if it does not fit. */
bool cache_reserve(cache_t *cache, uint64_t bytes, uint64_t *reserved_bytes_p);

/* Called with the lock held before and after the call, which runs without it. cache_end_growth returns false if
 * caches grew beyond the reservation and that does not fit. */
void cache_begin_growth(cache_t *cache, const growth_t *growth);
bool cache_end_growth(cache_t *cache, const growth_t *growth);

/* Around a pool's destruction, with no lock held. After the first call the pool is not queried any more; the second
 * call sets its new kind. */
void cache_begin_destroy(cache_t *cache);
void cache_end_destroy(cache_t *cache, cache_kind_t kind);

/* Note that memory was given back to a cache, which may shrink once the program waits for the GPU; and that it
 * waited. */
void cache_note_free(void);
void cache_note_sync(void);

/* The steps of ATTEMPT_REREAD and ATTEMPT_TRIMMED for other charges on this GPU. cache_trim returns false if there
 * was nothing to trim. */
void cache_refresh(uint32_t gpu);
bool cache_trim(uint32_t gpu);

/* Return how often growth has begun or ended on the GPU; and what the caches have held since that number was read,
 * or 0 if it has changed. */
uint64_t cache_growth_count(uint32_t gpu);
uint64_t cache_stable_bytes(uint32_t gpu, uint64_t growths);

#endif
