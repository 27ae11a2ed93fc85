/* What streams and events are made of. */
#ifndef SIMGPU_CUDA_STREAM_H
#define SIMGPU_CUDA_STREAM_H

#include "cuda_driver.h"

#define LEGACY ((CUstream)1)
#define PER_THREAD ((CUstream)2)
#define NON_BLOCKING 1u

struct CUstream_st {
    handle_head_t head;
    CUcontext context;
    uint64_t context_id;
    _Atomic uint64_t mark; /* of its end */
    CUgraph capture;       /* NULL: it is not being captured */
    CUstream next_joined;  /* in the same capture */
    unsigned flags;
    int priority;
    uint64_t id;
};

/* An event that other processes have, too, in memory of all of them. */
typedef struct {
    _Atomic uint64_t recorded, done; /* how often */
} shared_event_t;

struct CUevent_st {
    handle_head_t head;
    CUcontext context;
    uint64_t context_id;
    CUgraph captured;         /* last recorded in a stream that was being captured: there is no moment to wait for */
    unsigned flags;           /* as it was made */
    _Atomic uint64_t mark;    /* 0: never recorded, or nothing came before, which counts as complete */
    _Atomic uint64_t time_ns; /* when that was; 0: it is for the timeline to say */
    shared_event_t *shared;   /* NULL: it is this process's alone */
    int memory;               /* what that is in */
};

static inline bool stream_is_default(CUstream stream) {
    return stream == NULL || stream == LEGACY || stream == PER_THREAD;
}

/* cuda_event_share.c: it is recorded at the end of the stream; whether the last record has come; a wait for that. */
CUresult shared_event_record(CUevent event, CUcontext context, CUstream stream, bool per_thread);
bool shared_event_done(const shared_event_t *shared);
void shared_event_wait(const shared_event_t *shared);
CUresult shared_event_wait_in(CUevent event, CUcontext context, CUstream stream, bool per_thread);
void shared_event_close(CUevent event);

#endif
