/* Contexts as values, and the stack of them that each thread has. cuda/context/ creates and destroys them. */
#ifndef SIMGPU_CUDA_DEVICE_CONTEXT_H
#define SIMGPU_CUDA_DEVICE_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda/abi/abi.h"
#include "image/gpus.h"

#define MAX_CONTEXTS (2 * IMAGE_MAX_GPUS) /* primary ones by their device, then all others */
#define LIMITS 10u

struct CUctx_st {
    bool alive;
    bool primary;
    unsigned references; /* of a primary context */
    unsigned flags;
    unsigned number; /* in the table of contexts */
    CUdevice device;
    gpu_t *gpu;
    uint64_t id;                    /* no other context of this process ever has it */
    size_t limits[LIMITS];          /* as cuCtxSetLimit set them; 0: as they are at first */
    unsigned cache, banks;          /* what the program prefers */
    uint64_t peers;                 /* bit i: it may use the memory of device i's contexts */
    _Atomic uint64_t fault;         /* when a kernel of it fails: nothing works in it from then on; 0: never */
    _Atomic uint64_t last_mark;     /* of the end of everything launched in it: see channels.h */
    _Atomic uint64_t blocking_mark; /* the same of what its legacy default stream waits for */
    _Atomic uint64_t legacy_mark;   /* of the end of that stream itself */
    _Atomic unsigned captures;      /* streams that are being captured now */
};

/* The table of contexts: primary contexts first, by device. */
extern struct CUctx_st contexts[MAX_CONTEXTS];

/* cuda_context.c: the calling thread's context, on a GPU that still works. */
CUresult context_current(CUcontext *context_p);
CUresult context_usable(CUcontext context);
/* Of one that something belongs to: it may have ended, and its place may be another one's. */
CUresult context_usable_as(CUcontext context, uint64_t id);

/* Whether it points to an entry of the table. */
bool context_is_known(CUcontext context);

/* Remove it from the calling thread's stack if it is the current one. */
void context_pop(CUcontext context);

#endif
