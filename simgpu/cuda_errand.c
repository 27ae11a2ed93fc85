#include "cuda_errand.h"

#include <stdlib.h>
#include <string.h>

#include "timeline.h"

#define LOOK_NS 50000u /* words in memory change without a sign, so they are looked at */

typedef struct errand {
    struct errand *next;
    uint64_t number;
    stream_point_t point;
    errand_kind_t kind;
    _Alignas(16) char what[];
} errand_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static errand_t *first, **last = &first;
static uint64_t last_number;
static _Atomic unsigned count; /* so that a program without errands pays nothing */
static bool has_thread;

/* With the lock held: whether another one of its stream comes before it. */
static bool is_behind(const errand_t *errand) {
    for (const errand_t *before = first; before != errand; before = before->next) {
        if (before->point.end == errand->point.end)
            return true;
    }
    return false;
}

static bool is_ready(const errand_t *errand) {
    if (errand->kind.after_work && !timeline_reached(errand->point.context->gpu, *errand->point.end))
        return false;
    return errand->kind.ready == NULL || errand->kind.ready(errand->what);
}

/* With the lock held, but not while errands look at what they wait for: only this thread takes any out. */
static errand_t *next_ready(void) {
    for (errand_t *errand = first; errand != NULL; errand = errand->next) {
        if (is_behind(errand))
            continue;
        pthread_mutex_unlock(&mutex);
        bool ready = is_ready(errand);
        pthread_mutex_lock(&mutex);
        if (ready)
            return errand;
    }
    return NULL;
}

/* With the lock held. */
static void take_out(errand_t *errand) {
    errand_t **link = &first;
    while (*link != errand)
        link = &(*link)->next;
    *link = errand->next;
    if (last == &errand->next)
        last = link;
    free(errand);
    count--;
    pthread_cond_broadcast(&changed);
}

static void *work(void *nothing) {
    pthread_mutex_lock(&mutex);
    for (;;) {
        errand_t *errand = next_ready();
        if (driver_ready() != CUDA_SUCCESS)
            break; /* the program ends */
        if (errand == NULL && first == NULL) {
            pthread_cond_wait(&changed, &mutex);
        } else if (errand == NULL) {
            pthread_mutex_unlock(&mutex);
            timeline_sleep(timeline_now_ns() + LOOK_NS);
            pthread_mutex_lock(&mutex);
        } else {
            pthread_mutex_unlock(&mutex);
            if (errand->kind.act != NULL)
                errand->kind.act(errand->what);
            pthread_mutex_lock(&mutex);
            take_out(errand);
        }
    }
    pthread_mutex_unlock(&mutex);
    return nothing;
}

/* With the lock held. */
static bool start_thread(void) {
    pthread_t thread;
    if (!has_thread && pthread_create(&thread, NULL, work, NULL) == 0) {
        (void)pthread_detach(thread);
        has_thread = true;
    }
    return has_thread;
}

uint64_t errand_queue(const stream_point_t *point, const errand_kind_t *kind, const void *what, size_t bytes) {
    errand_t *errand = malloc(sizeof *errand + bytes);
    if (errand == NULL)
        return 0;
    *errand = (errand_t){.point = *point, .kind = *kind};
    memcpy(errand->what, what, bytes);
    pthread_mutex_lock(&mutex);
    uint64_t number = 0;
    if (start_thread()) {
        number = errand->number = ++last_number;
        *last = errand;
        last = &errand->next;
        count++;
        pthread_cond_broadcast(&changed);
    } else {
        free(errand);
    }
    pthread_mutex_unlock(&mutex);
    return number;
}

uint64_t errand_last(const _Atomic uint64_t *end) {
    uint64_t number = 0;
    if (count == 0)
        return 0;
    pthread_mutex_lock(&mutex);
    for (const errand_t *errand = first; errand != NULL; errand = errand->next)
        number = errand->point.end == end ? errand->number : number;
    pthread_mutex_unlock(&mutex);
    return number;
}

uint64_t errand_last_of(CUcontext context) {
    uint64_t number = 0;
    if (count == 0)
        return 0;
    pthread_mutex_lock(&mutex);
    for (const errand_t *errand = first; errand != NULL; errand = errand->next)
        number = errand->point.context == context ? errand->number : number;
    pthread_mutex_unlock(&mutex);
    return number;
}

/* With the lock held. */
static bool is_done(uint64_t number) {
    for (const errand_t *errand = first; errand != NULL; errand = errand->next) {
        if (errand->number == number)
            return false;
    }
    return true;
}

bool errand_done(uint64_t number) {
    if (number == 0 || count == 0)
        return true;
    pthread_mutex_lock(&mutex);
    bool done = is_done(number);
    pthread_mutex_unlock(&mutex);
    return done;
}

void errand_wait(uint64_t number) {
    if (number == 0 || count == 0)
        return;
    pthread_mutex_lock(&mutex);
    while (!is_done(number))
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

void errand_wait_context(CUcontext context) {
    for (uint64_t number; (number = errand_last_of(context)) != 0;)
        errand_wait(number);
}
