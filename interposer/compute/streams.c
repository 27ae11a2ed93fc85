#define _GNU_SOURCE
#include "compute/streams.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/fork.h"
#include "compute/passes.h"
#include "cuda/capture.h"
#include "cuda/event.h"
#include "cuda/stream.h"
#include "driver/driver.h"
#include "share/share.h"

#define MAX_STREAMS 1024
#define CLAIM_POLL_NS 20000

typedef struct streams_slot {
    CUcontext context; /* NULL: a free slot */
    CUstream stream;   /* NULL: destroyed, and its work may still run */
    CUevent event;     /* NULL: not needed so far */
    uint32_t gpu;
    unsigned suspended; /* number of calls in progress that may end the context */
    bool claimed;       /* a thread is calling the driver about it */
    bool marked;        /* the event follows the work in question */
    bool captured;      /* a capture began in it after the event */
} slot_t;

static struct {
    pthread_mutex_t mutex;
    slot_t slots[MAX_STREAMS];
    unsigned high;
    bool overflowed; /* too many streams */
} streams = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void streams_after_fork(void) {
    memset(streams.slots, 0, streams.high * sizeof *streams.slots);
    streams.high = 0;
    streams.overflowed = false;
    streams.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
FORK_ON_CHILD(streams_after_fork)

/* With the lock held. */
static slot_t *find(CUstream stream) {
    for (unsigned i = 0; i < streams.high; i++) {
        if (streams.slots[i].context != NULL && streams.slots[i].stream == stream)
            return &streams.slots[i];
    }
    return NULL;
}

static slot_t *free_slot(void) {
    for (unsigned i = 0; i < streams.high; i++) {
        if (streams.slots[i].context == NULL)
            return &streams.slots[i];
    }
    return streams.high < MAX_STREAMS ? &streams.slots[streams.high++] : NULL;
}

void streams_add(CUstream stream) {
    place_t place;
    CUdevice device;
    CUcontext context;
    if (stream_place(stream, &place, &device) != CUDA_SUCCESS || place.gpu == SHARE_NO_GPU ||
        REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || context == NULL)
        return;
    pthread_mutex_lock(&streams.mutex);
    slot_t *slot = find(stream); /* a stream whose end our hooks did not see */
    slot = slot == NULL ? free_slot() : slot;
    if (slot != NULL)
        *slot = (slot_t){.context = context, .stream = stream, .gpu = place.gpu};
    else
        __atomic_store_n(&streams.overflowed, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&streams.mutex);
}

unsigned streams_count(uint32_t gpu) {
    unsigned count = 0;
    pthread_mutex_lock(&streams.mutex);
    for (unsigned i = 0; i < streams.high; i++)
        count += streams.slots[i].stream != NULL && streams.slots[i].gpu == gpu;
    pthread_mutex_unlock(&streams.mutex);
    return count;
}

/* Claim the stream's slot for this thread. Returns NULL if there is none. */
static slot_t *claim(CUstream stream) {
    slot_t *slot = NULL;
    for (bool claimed = false; !claimed;) {
        pthread_mutex_lock(&streams.mutex);
        slot = stream_is_handle(stream) ? find(stream) : NULL;
        claimed = slot == NULL || !slot->claimed;
        if (slot != NULL)
            slot->claimed = true;
        pthread_mutex_unlock(&streams.mutex);
        if (!claimed)
            pause_ns(CLAIM_POLL_NS);
    }
    return slot;
}

static void release_claim(slot_t *slot, bool frees) {
    pthread_mutex_lock(&streams.mutex);
    slot->claimed = false;
    if (frees)
        slot->context = NULL;
    pthread_mutex_unlock(&streams.mutex);
}

static bool is_capturing(CUstream stream) {
    int status = 0;
    return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != 0;
}

/* Record an event after all work of a claimed stream. Returns false if a capture includes the event, which then says
 * nothing, or if it could. A broken context runs nothing. */
static bool record(slot_t *slot) {
    CUcontext popped;
    slot->marked = false;
    if (slot->event == NULL && event_create(slot->context, &slot->event) != CUDA_SUCCESS)
        return true;
    if (REAL(cuCtxPushCurrent_v2)(slot->context) != CUDA_SUCCESS)
        return true;
    bool free = !is_capturing(slot->stream);
    if (free && REAL(cuEventRecord)(slot->event, slot->stream) == CUDA_SUCCESS)
        slot->marked = free = !is_capturing(slot->stream);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return free;
}

void streams_capture(CUstream stream) {
    slot_t *slot = claim(stream);
    if (slot == NULL)
        return;
    slot->captured = record(slot);
    release_claim(slot, false);
}

bool streams_are_polled(void) {
    return !driver_has(HOOK_cuCtxRecordEvent) || capture_any();
}

/* The handle is removed first, because after the call the driver may reuse it at once, even on another GPU. */
streams_slot_t *streams_begin_destroy(CUstream stream) {
    passes_revoke();
    slot_t *slot = claim(stream);
    if (slot == NULL)
        return NULL;
    if (!slot->marked && streams_are_polled())
        (void)record(slot);
    pthread_mutex_lock(&streams.mutex);
    slot->stream = NULL;
    pthread_mutex_unlock(&streams.mutex);
    return slot;
}

void streams_end_destroy(streams_slot_t *slot, CUstream stream, bool ended) {
    if (slot == NULL)
        return;
    bool runs = slot->marked;
    CUevent event = ended && !runs ? slot->event : NULL;
    pthread_mutex_lock(&streams.mutex);
    slot->stream = ended ? NULL : stream;
    slot->claimed = false;
    if (ended && !runs)
        slot->context = NULL;
    pthread_mutex_unlock(&streams.mutex);
    if (event != NULL)
        (void)REAL(cuEventDestroy_v2)(event);
}

void streams_suspend(CUcontext context) {
    pthread_mutex_lock(&streams.mutex);
    for (unsigned i = 0; i < streams.high; i++) {
        slot_t *slot = &streams.slots[i];
        if (slot->context == context)
            slot->suspended++;
        while (slot->context == context && slot->claimed) {
            pthread_mutex_unlock(&streams.mutex);
            pause_ns(CLAIM_POLL_NS);
            pthread_mutex_lock(&streams.mutex);
        }
    }
    pthread_mutex_unlock(&streams.mutex);
}

/* The events end with their context. */
static void end_suspension(CUcontext context, bool ended) {
    pthread_mutex_lock(&streams.mutex);
    for (unsigned i = 0; i < streams.high; i++) {
        slot_t *slot = &streams.slots[i];
        if (slot->context == context && ended)
            *slot = (slot_t){0};
        else if (slot->context == context && slot->suspended > 0)
            slot->suspended--;
    }
    pthread_mutex_unlock(&streams.mutex);
}

void streams_drop(CUcontext context) {
    end_suspension(context, true);
}

void streams_resume(CUcontext context) {
    end_suspension(context, false);
}

/* Claim this GPU's next slot to query. Returns NULL at the end. Slots that another thread has claimed are skipped,
 * which sets `*passed_over_p`. */
static slot_t *next(uint32_t gpu, unsigned *index, bool marked, bool *passed_over_p) {
    slot_t *slot = NULL;
    pthread_mutex_lock(&streams.mutex);
    for (; slot == NULL && *index < streams.high; *index += 1) {
        slot_t *at = &streams.slots[*index];
        if (at->context == NULL || at->gpu != gpu)
            continue;
        if (at->claimed || at->suspended > 0) { /* the claiming thread may be changing the other fields */
            *passed_over_p = true;
            continue;
        }
        if (marked ? !at->marked : at->stream == NULL)
            continue;
        at->claimed = true;
        slot = at;
    }
    pthread_mutex_unlock(&streams.mutex);
    return slot;
}

bool streams_mark(uint32_t gpu) {
    bool missed = __atomic_load_n(&streams.overflowed, __ATOMIC_RELAXED);
    unsigned index = 0;
    for (slot_t *slot; (slot = next(gpu, &index, false, &missed)) != NULL; release_claim(slot, false)) {
        slot->captured = slot->captured && is_capturing(slot->stream);
        if (!slot->captured && !record(slot))
            missed = true;
    }
    return !missed;
}

bool streams_are_done(uint32_t gpu) {
    bool runs = false;
    unsigned index = 0;
    for (slot_t *slot; !runs && (slot = next(gpu, &index, true, &runs)) != NULL;) {
        bool done = REAL(cuEventQuery)(slot->event) != CUDA_ERROR_NOT_READY;
        bool frees = done && slot->stream == NULL;
        if (frees)
            (void)REAL(cuEventDestroy_v2)(slot->event);
        slot->marked = !done;
        runs = runs || !done;
        release_claim(slot, frees);
    }
    return !runs;
}
