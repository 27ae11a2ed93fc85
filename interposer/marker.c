#include "marker.h"

#include <pthread.h>
#include <string.h>

#include "capture.h"
#include "driver.h"
#include "flow.h"
#include "fork.h"

#define MAX_CONTEXTS 64

typedef struct {
    CUcontext context;
    CUevent event;
    uint32_t gpu;
    bool marked;
} place_t;

/* The mutex is held by the helper thread while it calls the driver, and by a thread that ends a context before it calls
 * the driver: so the helper never uses a context that has ended, and nobody waits for it inside the driver. */
static struct {
    pthread_mutex_t mutex;
    place_t places[MAX_CONTEXTS];
    unsigned count;
} markers = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void marker_after_fork(void) {
    memset(&markers, 0, sizeof markers);
    markers.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    flow_after_fork();
}

static place_t *find(CUcontext context) {
    unsigned count = __atomic_load_n(&markers.count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++) {
        if (__atomic_load_n(&markers.places[i].context, __ATOMIC_ACQUIRE) == context)
            return &markers.places[i];
    }
    return NULL;
}

void marker_context(CUcontext context, uint32_t gpu) {
    if (find(context) != NULL)
        return;
    pthread_mutex_lock(&markers.mutex);
    place_t *place = find(context) == NULL ? find(NULL) : NULL;
    if (place == NULL && find(context) == NULL && markers.count < MAX_CONTEXTS)
        place = &markers.places[markers.count];
    if (place != NULL) {
        place->event = NULL;
        place->marked = false;
        place->gpu = gpu;
        __atomic_store_n(&place->context, context, __ATOMIC_RELEASE);
        if (place == &markers.places[markers.count])
            __atomic_store_n(&markers.count, markers.count + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&markers.mutex);
}

void marker_forget(CUcontext context) {
    if (context == NULL)
        return;
    flow_forget(context);
    pthread_mutex_lock(&markers.mutex);
    place_t *place = find(context);
    if (place != NULL) {
        place->event = NULL; /* it ends with its context */
        place->marked = false;
        __atomic_store_n(&place->context, NULL, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&markers.mutex);
}

static CUresult make_event(place_t *place) {
    CUcontext popped;
    CUresult result = REAL(cuCtxPushCurrent_v2)(place->context);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuEventCreate)(&place->event, CU_EVENT_DISABLE_TIMING);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

/* Before CUDA 12.5 an event in the default stream has to do, which comes after the work of all streams that synchronise
 * with it. */
static CUresult record_default(const place_t *place) {
    CUcontext popped;
    CUresult result = REAL(cuCtxPushCurrent_v2)(place->context);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuEventRecord)(place->event, CU_STREAM_LEGACY);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

static void record(place_t *place) {
    CUresult result = place->event == NULL ? make_event(place) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        result = REAL(cuCtxRecordEvent)(place->context, place->event);
        if (result == CUDA_ERROR_NOT_FOUND)
            result = record_default(place);
    }
    place->marked = result == CUDA_SUCCESS;
}

void marker_record(uint32_t gpu) {
    pthread_mutex_lock(&markers.mutex);
    for (unsigned i = 0; i < markers.count; i++) {
        place_t *place = &markers.places[i];
        if (place->context == NULL || place->gpu != gpu)
            continue;
        place->marked = false;
        if (!capture_any()) /* it would break the capture */
            record(place);
    }
    pthread_mutex_unlock(&markers.mutex);
}

bool marker_done(uint32_t gpu) {
    bool done = true;
    pthread_mutex_lock(&markers.mutex);
    for (unsigned i = 0; i < markers.count && done; i++) {
        place_t *place = &markers.places[i];
        if (place->context == NULL || place->gpu != gpu || !place->marked)
            continue;
        CUresult result = REAL(cuEventQuery)(place->event);
        done = result != CUDA_ERROR_NOT_READY;
        if (done)
            place->marked = false;
    }
    pthread_mutex_unlock(&markers.mutex);
    return done;
}
