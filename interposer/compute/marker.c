#define _GNU_SOURCE
#include "compute/marker.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/contract.h"
#include "base/fork.h"
#include "compute/flow.h"
#include "compute/passes.h"
#include "compute/streams.h"
#include "cuda/event.h"
#include "driver/driver.h"

#define MAX_CONTEXTS 64
#define MAX_IDLE_WAIT_POLLS 1000
#define IDLE_WAIT_POLL_NS 20000

typedef struct {
    CUcontext context; /* must be first: only this field is read without the mutex */
    CUevent event;
    uint32_t gpu;
    unsigned suspended; /* number of calls in progress that may end the context */
    bool marked;
    bool due;    /* was suspended when it should have been marked */
    bool legacy; /* its default stream must be queried */
    bool missed;
} context_t;

/* The helper holds the mutex while it calls the driver. A thread that may end a context takes it to suspend that
 * context. So the helper never uses a context that has ended, and no thread waits for the helper inside the driver. */
static struct {
    pthread_mutex_t mutex;
    context_t contexts[MAX_CONTEXTS];
    unsigned count;
    bool calling;        /* the helper is calling the driver */
    bool stopped;        /* it no longer does */
    bool thread_streams; /* see marker_use_thread_streams */
    struct {
        bool polled, missed, overflowed; /* overflowed: too many contexts */
    } streams[MAX_GPUS];
} markers = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void marker_after_fork(void) {
    memset(&markers, 0, sizeof markers);
    markers.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
FORK_ON_CHILD(marker_after_fork)

static context_t *find(CUcontext context) {
    unsigned count = __atomic_load_n(&markers.count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++) {
        if (__atomic_load_n(&markers.contexts[i].context, __ATOMIC_ACQUIRE) == context)
            return &markers.contexts[i];
    }
    return NULL;
}

bool marker_find(CUcontext context, uint32_t *gpu_p) {
    const context_t *place = find(context);
    if (place != NULL)
        *gpu_p = place->gpu;
    return place != NULL;
}

void marker_add(CUcontext context, uint32_t gpu) {
    if (find(context) != NULL)
        return;
    pthread_mutex_lock(&markers.mutex);
    bool known = find(context) != NULL;
    context_t *place = known ? NULL : find(NULL);
    if (place == NULL && !known && markers.count < MAX_CONTEXTS)
        place = &markers.contexts[markers.count];
    if (place == NULL && !known)
        markers.streams[gpu].overflowed = true;
    if (place != NULL) {
        memset(&place->event, 0, sizeof *place - offsetof(context_t, event));
        place->gpu = gpu;
        __atomic_store_n(&place->context, context, __ATOMIC_RELEASE);
        if (place == &markers.contexts[markers.count])
            __atomic_store_n(&markers.count, markers.count + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&markers.mutex);
}

void marker_suspend(CUcontext context) {
    if (context == NULL)
        return;
    passes_revoke();
    flow_suspend(context);
    pthread_mutex_lock(&markers.mutex);
    context_t *place = find(context);
    if (place != NULL)
        place->suspended++;
    pthread_mutex_unlock(&markers.mutex);
    streams_suspend(context);
}

/* Its events have ended with it. */
void marker_drop(CUcontext context) {
    if (context == NULL)
        return;
    flow_drop(context);
    streams_drop(context);
    pthread_mutex_lock(&markers.mutex);
    context_t *place = find(context);
    if (place != NULL)
        __atomic_store_n(&place->context, NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&markers.mutex);
    passes_revoke();
}

void marker_resume(CUcontext context) {
    if (context == NULL)
        return;
    flow_resume(context);
    streams_resume(context);
    pthread_mutex_lock(&markers.mutex);
    context_t *place = find(context);
    if (place != NULL && place->suspended > 0)
        place->suspended--;
    pthread_mutex_unlock(&markers.mutex);
}

void marker_use_thread_streams(void) {
    if (!__atomic_load_n(&markers.thread_streams, __ATOMIC_RELAXED))
        __atomic_store_n(&markers.thread_streams, true, __ATOMIC_RELAXED);
}

void marker_wait_idle(void) {
    for (unsigned i = 0; i < MAX_IDLE_WAIT_POLLS && __atomic_load_n(&markers.calling, __ATOMIC_SEQ_CST); i++)
        pause_ns(IDLE_WAIT_POLL_NS);
}

void marker_stop(void) {
    __atomic_store_n(&markers.stopped, true, __ATOMIC_SEQ_CST);
    marker_wait_idle();
}

/* Called with true before the helper checks for captures and calls the driver, and with false afterwards. Returns false
 * if it must not call the driver any more. */
static bool set_calling(bool calling) {
    if (calling)
        pthread_mutex_lock(&markers.mutex);
    __atomic_store_n(&markers.calling, calling, __ATOMIC_SEQ_CST);
    if (!calling)
        pthread_mutex_unlock(&markers.mutex);
    return !__atomic_load_n(&markers.stopped, __ATOMIC_SEQ_CST);
}

static void record(context_t *place) {
    CUresult result = place->event == NULL ? event_create(place->context, &place->event) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = REAL(cuCtxRecordEvent)(place->context, place->event);
    place->marked = result == CUDA_SUCCESS;
}

/* With the lock held, as in the functions below. */
static void record_all(uint32_t gpu) {
    bool by_streams = streams_are_polled();
    for (unsigned i = 0; i < markers.count; i++) {
        context_t *place = &markers.contexts[i];
        if (place->context == NULL || place->gpu != gpu)
            continue;
        place->marked = place->legacy = place->missed = false;
        place->due = place->suspended > 0;
        if (place->due)
            continue;
        if (!by_streams)
            record(place);
        place->legacy = by_streams;
        place->missed = place->legacy && __atomic_load_n(&markers.thread_streams, __ATOMIC_RELAXED);
    }
    markers.streams[gpu].polled = by_streams;
    markers.streams[gpu].missed = by_streams && !streams_mark(gpu);
}

void marker_record(uint32_t gpu) {
    if (set_calling(true))
        record_all(gpu);
    (void)set_calling(false);
}

/* An event in the default stream would act as a barrier between other streams: if two kernels wait for each other,
 * the second could not start. So the stream is only queried, and only if no stream that it would wait for is
 * capturing. */
static bool legacy_done(context_t *place) {
    CUcontext popped;
    int status = 1;
    if (REAL(cuCtxPushCurrent_v2)(place->context) != CUDA_SUCCESS)
        return true;
    bool free = REAL(cuStreamIsCapturing)(CU_STREAM_LEGACY, &status) == CUDA_SUCCESS && status == 0;
    bool done = !free || REAL(cuStreamQuery)(CU_STREAM_LEGACY) != CUDA_ERROR_NOT_READY;
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    place->missed = place->missed || !free;
    return done;
}

static bool is_done(context_t *place) {
    if (place->due)
        return false;
    if (place->suspended > 0)
        return !place->marked && !place->legacy;
    if (place->marked)
        place->marked = REAL(cuEventQuery)(place->event) == CUDA_ERROR_NOT_READY;
    if (place->legacy)
        place->legacy = !legacy_done(place);
    return !place->marked && !place->legacy;
}

bool marker_is_done(uint32_t gpu) {
    bool done = true, retry = false, may_call = set_calling(true);
    for (unsigned i = 0; i < markers.count && may_call; i++) {
        const context_t *place = &markers.contexts[i];
        retry = retry || (place->context != NULL && place->gpu == gpu && place->due && place->suspended == 0);
    }
    if (retry)
        record_all(gpu);
    for (unsigned i = 0; may_call && i < markers.count && done; i++) {
        context_t *place = &markers.contexts[i];
        if (place->context != NULL && place->gpu == gpu)
            done = is_done(place);
    }
    if (may_call && done && markers.streams[gpu].polled)
        done = streams_are_done(gpu);
    (void)set_calling(false);
    return done;
}

bool marker_has_missed(uint32_t gpu) {
    pthread_mutex_lock(&markers.mutex);
    bool missed = markers.streams[gpu].missed || markers.streams[gpu].overflowed;
    for (unsigned i = 0; i < markers.count; i++) {
        const context_t *place = &markers.contexts[i];
        missed = missed || (place->context != NULL && place->gpu == gpu && place->missed);
    }
    pthread_mutex_unlock(&markers.mutex);
    return missed;
}
