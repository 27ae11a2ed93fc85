/* The table of contexts, and each thread's stack of current contexts. cuda/context/ creates and destroys contexts. */
#ifndef SIMGPU_CUDA_DEVICE_CONTEXT_H
#define SIMGPU_CUDA_DEVICE_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda/abi/abi.h"
#include "image/gpus.h"

#define MAX_CONTEXTS (2 * IMAGE_MAX_GPUS) /* one primary context per device, then all others */
#define LIMITS 10u

struct CUctx_st {
    bool alive;
    bool primary;
    unsigned references; /* references to a primary context */
    unsigned flags;
    unsigned number; /* in the table of contexts */
    CUdevice device;
    gpu_t *gpu;
    uint64_t id;                    /* unique in this process */
    size_t limits[LIMITS];          /* as set by cuCtxSetLimit; 0: the default */
    unsigned cache, banks;          /* preferences of the program */
    uint64_t peers;                 /* bit i: peer access to device i is enabled */
    _Atomic uint64_t fault;         /* the mark at which a kernel fails, after which the context is unusable; 0: none */
    _Atomic uint64_t last_mark;     /* the end of all work launched in it: see channels.h */
    _Atomic uint64_t blocking_mark; /* the end of the work that its legacy default stream waits for */
    _Atomic uint64_t legacy_mark;   /* the end of that stream itself */
    _Atomic unsigned captures;      /* streams being captured now */
};

/* The table of contexts: primary contexts first, by device. */
extern struct CUctx_st contexts[MAX_CONTEXTS];

/* Return the calling thread's current context, or check one: it exists, and its GPU works. */
CUresult context_current(CUcontext *context_p);
CUresult context_usable(CUcontext context);
/* Check a context that a stream, event or module belongs to. It may have ended, and its entry may be reused. */
CUresult context_usable_as(CUcontext context, uint64_t id);

/* Whether the handle is an entry of the table. */
bool context_is_known(CUcontext context);

/* Remove the context from the calling thread's stack if it is the current one. */
void context_pop(CUcontext context);

#endif
