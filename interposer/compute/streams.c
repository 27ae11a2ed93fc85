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
#define CLAIM_LOOK_NS 20000

typedef struct streams_seat {
    CUcontext context; /* NULL: a free seat */
    CUstream stream;   /* NULL: it has ended, and what it was given may run still */
    CUevent event;     /* NULL: none was needed yet */
    uint32_t gpu;
    unsigned aside; /* its context may be ending, and so many are about to say whether it has */
    bool claimed;   /* the driver is being asked about it */
    bool marked;    /* the event is after what is asked about */
    bool captured;  /* a capture has begun in it, after the event */
} seat_t;

static struct {
    pthread_mutex_t mutex;
    seat_t seats[MAX_STREAMS];
    unsigned high;
    bool untold; /* there have been too many */
} streams = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void streams_after_fork(void) {
    memset(streams.seats, 0, streams.high * sizeof *streams.seats);
    streams.high = 0;
    streams.untold = false;
    streams.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
FORK_ON_CHILD(streams_after_fork)

/* With the lock held. */
static seat_t *find(CUstream stream) {
    for (unsigned i = 0; i < streams.high; i++) {
        if (streams.seats[i].context != NULL && streams.seats[i].stream == stream)
            return &streams.seats[i];
    }
    return NULL;
}

static seat_t *free_seat(void) {
    for (unsigned i = 0; i < streams.high; i++) {
        if (streams.seats[i].context == NULL)
            return &streams.seats[i];
    }
    return streams.high < MAX_STREAMS ? &streams.seats[streams.high++] : NULL;
}

void streams_made(CUstream stream) {
    place_t place;
    CUdevice device;
    CUcontext context;
    if (stream_place(stream, &place, &device) != CUDA_SUCCESS || place.gpu == SHARE_NO_GPU ||
        REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || context == NULL)
        return;
    pthread_mutex_lock(&streams.mutex);
    seat_t *seat = find(stream); /* one that has ended without our seeing it */
    seat = seat == NULL ? free_seat() : seat;
    if (seat != NULL)
        *seat = (seat_t){.context = context, .stream = stream, .gpu = place.gpu};
    else
        __atomic_store_n(&streams.untold, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&streams.mutex);
}

unsigned streams_count(uint32_t gpu) {
    unsigned count = 0;
    pthread_mutex_lock(&streams.mutex);
    for (unsigned i = 0; i < streams.high; i++)
        count += streams.seats[i].stream != NULL && streams.seats[i].gpu == gpu;
    pthread_mutex_unlock(&streams.mutex);
    return count;
}

/* The seat of a stream for this thread alone, or NULL. */
static seat_t *claim(CUstream stream) {
    seat_t *seat = NULL;
    for (bool claimed = false; !claimed;) {
        pthread_mutex_lock(&streams.mutex);
        seat = stream_is_handle(stream) ? find(stream) : NULL;
        claimed = seat == NULL || !seat->claimed;
        if (seat != NULL)
            seat->claimed = true;
        pthread_mutex_unlock(&streams.mutex);
        if (!claimed)
            pause_ns(CLAIM_LOOK_NS);
    }
    return seat;
}

static void unclaim(seat_t *seat, bool ends) {
    pthread_mutex_lock(&streams.mutex);
    seat->claimed = false;
    if (ends)
        seat->context = NULL;
    pthread_mutex_unlock(&streams.mutex);
}

static bool is_capturing(CUstream stream) {
    int status = 0;
    return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != 0;
}

/* Of a claimed seat: an event after all that the stream was given. False: a capture has taken the event in, which then
 * says nothing and must not be asked, or would. A context that is broken runs nothing. */
static bool record(seat_t *seat) {
    CUcontext popped;
    seat->marked = false;
    if (seat->event == NULL && event_make(seat->context, &seat->event) != CUDA_SUCCESS)
        return true;
    if (REAL(cuCtxPushCurrent_v2)(seat->context) != CUDA_SUCCESS)
        return true;
    bool free = !is_capturing(seat->stream);
    if (free && REAL(cuEventRecord)(seat->event, seat->stream) == CUDA_SUCCESS)
        seat->marked = free = !is_capturing(seat->stream);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return free;
}

void streams_capture(CUstream stream) {
    seat_t *seat = claim(stream);
    if (seat == NULL)
        return;
    seat->captured = record(seat);
    unclaim(seat, false);
}

bool streams_are_asked(void) {
    return !driver_has(HOOK_cuCtxRecordEvent) || capture_any();
}

/* Forgotten before it ends, for after that the driver may use the same handle again at once, on another GPU even. */
streams_seat_t *streams_end(CUstream stream) {
    passes_recall();
    seat_t *seat = claim(stream);
    if (seat == NULL)
        return NULL;
    if (!seat->marked && streams_are_asked())
        (void)record(seat);
    pthread_mutex_lock(&streams.mutex);
    seat->stream = NULL;
    pthread_mutex_unlock(&streams.mutex);
    return seat;
}

void streams_ended(streams_seat_t *seat, CUstream stream, bool ended) {
    if (seat == NULL)
        return;
    bool runs = seat->marked;
    CUevent event = ended && !runs ? seat->event : NULL;
    pthread_mutex_lock(&streams.mutex);
    seat->stream = ended ? NULL : stream;
    seat->claimed = false;
    if (ended && !runs)
        seat->context = NULL;
    pthread_mutex_unlock(&streams.mutex);
    if (event != NULL)
        (void)REAL(cuEventDestroy_v2)(event);
}

void streams_set_aside(CUcontext context) {
    pthread_mutex_lock(&streams.mutex);
    for (unsigned i = 0; i < streams.high; i++) {
        seat_t *seat = &streams.seats[i];
        if (seat->context == context)
            seat->aside++;
        while (seat->context == context && seat->claimed) {
            pthread_mutex_unlock(&streams.mutex);
            pause_ns(CLAIM_LOOK_NS);
            pthread_mutex_lock(&streams.mutex);
        }
    }
    pthread_mutex_unlock(&streams.mutex);
}

/* The events end with their context. */
static void leave(CUcontext context, bool ended) {
    pthread_mutex_lock(&streams.mutex);
    for (unsigned i = 0; i < streams.high; i++) {
        seat_t *seat = &streams.seats[i];
        if (seat->context == context && ended)
            *seat = (seat_t){0};
        else if (seat->context == context && seat->aside > 0)
            seat->aside--;
    }
    pthread_mutex_unlock(&streams.mutex);
}

void streams_drop(CUcontext context) {
    leave(context, true);
}

void streams_restore(CUcontext context) {
    leave(context, false);
}

/* The next seat of this GPU that there is something to ask about; NULL: no more. Those that another thread has claimed
 * are passed over, which is told. */
static seat_t *next(uint32_t gpu, unsigned *index, bool marked, bool *passed_over_p) {
    seat_t *seat = NULL;
    pthread_mutex_lock(&streams.mutex);
    for (; seat == NULL && *index < streams.high; *index += 1) {
        seat_t *at = &streams.seats[*index];
        if (at->context == NULL || at->gpu != gpu)
            continue;
        if (at->claimed || at->aside > 0) { /* whoever has claimed it may just be changing the rest of it */
            *passed_over_p = true;
            continue;
        }
        if (marked ? !at->marked : at->stream == NULL)
            continue;
        at->claimed = true;
        seat = at;
    }
    pthread_mutex_unlock(&streams.mutex);
    return seat;
}

bool streams_mark(uint32_t gpu) {
    bool missed = __atomic_load_n(&streams.untold, __ATOMIC_RELAXED);
    unsigned index = 0;
    for (seat_t *seat; (seat = next(gpu, &index, false, &missed)) != NULL; unclaim(seat, false)) {
        seat->captured = seat->captured && is_capturing(seat->stream);
        if (!seat->captured && !record(seat))
            missed = true;
    }
    return !missed;
}

bool streams_done(uint32_t gpu) {
    bool runs = false;
    unsigned index = 0;
    for (seat_t *seat; !runs && (seat = next(gpu, &index, true, &runs)) != NULL;) {
        bool done = REAL(cuEventQuery)(seat->event) != CUDA_ERROR_NOT_READY;
        bool ends = done && seat->stream == NULL;
        if (ends)
            (void)REAL(cuEventDestroy_v2)(seat->event);
        seat->marked = !done;
        runs = runs || !done;
        unclaim(seat, ends);
    }
    return !runs;
}
