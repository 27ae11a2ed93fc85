/* Work of streams other than kernels, in stream order: see stream_enqueue. On the timeline each action is held work,
 * which a thread of the driver releases when the action is done. */
#define _GNU_SOURCE
#include "cuda/stream/action.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "cuda/device/context.h"
#include "cuda/device/device.h"
#include "cuda/graph/graph.h"
#include "cuda/stream/stream.h"
#include "image/clock.h"

#define POLL_NS 100000ull /* polling interval for an action that is not done yet */
#define MAX_PAUSE_NS 1000000ull

typedef struct action {
    struct action *next;
    gpu_t *gpu;
    uint64_t mark;
    stream_action_t act;
    void *argument;
} action_t;

/* A worker thread and its actions; those of a GPU are in launch order. Any thread adds actions; only the worker
 * removes them. */
typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t added;
    action_t *first;
    bool started;
} worker_t;

static worker_t workers[2] = {{.mutex = PTHREAD_MUTEX_INITIALIZER}, {.mutex = PTHREAD_MUTEX_INITIALIZER}};

static _Atomic unsigned pending;

bool stream_actions_pending(void) {
    return pending > 0;
}

/* With the mutex held. */
static void add_action(worker_t *worker, action_t *action) {
    action_t **link = &worker->first;
    while (*link != NULL && ((*link)->gpu != action->gpu || mark_number((*link)->mark) < mark_number(action->mark)))
        link = &(*link)->next;
    action->next = *link;
    *link = action;
    pthread_cond_signal(&worker->added);
}

/* With the mutex held. */
static void remove_action(worker_t *worker, action_t *action) {
    action_t **link = &worker->first;
    while (*link != action)
        link = &(*link)->next;
    *link = action->next;
    free(action->argument);
    free(action);
    pending--;
}

/* Channels whose first action has been polled: later ones cannot have begun. */
typedef struct {
    uint32_t channels[IMAGE_MAX_GPUS];
} seen_t;

static bool is_first(seen_t *seen, const action_t *action) {
    uint32_t *channels = &seen->channels[action->gpu->index], bit = 1u << mark_index(action->mark);
    bool first = (*channels & bit) == 0;
    *channels |= bit;
    return first;
}

/* Return when to poll again; 0: the action is done, and the stream continues. */
static uint64_t poll(const action_t *action) {
    uint64_t again_ns;
    if (!timeline_has_begun(action->gpu, action->mark, &again_ns))
        return again_ns;
    if (!action->act(action->argument))
        return clock_now_ns() + POLL_NS;
    timeline_release(action->gpu, action->mark);
    return 0;
}

/* With the mutex held on entry and exit; it is released while actions run. Returns when to poll again. */
static uint64_t poll_all(worker_t *worker) {
    uint64_t soonest_ns = clock_now_ns() + MAX_PAUSE_NS;
    seen_t seen = {.channels = {0}};
    for (action_t *action = worker->first, *next; action != NULL; action = next) {
        uint64_t again_ns = UINT64_MAX;
        if (is_first(&seen, action)) {
            pthread_mutex_unlock(&worker->mutex);
            again_ns = poll(action);
            pthread_mutex_lock(&worker->mutex);
        }
        next = action->next;
        if (again_ns == 0)
            remove_action(worker, action);
        soonest_ns = again_ns < soonest_ns ? again_ns : soonest_ns;
    }
    return soonest_ns;
}

static void *work(void *argument) {
    worker_t *worker = argument;
    (void)prctl(PR_SET_TIMERSLACK, 1);
    pthread_mutex_lock(&worker->mutex);
    while (driver_ready() == CUDA_SUCCESS) { /* until the program ends */
        while (worker->first == NULL)
            pthread_cond_wait(&worker->added, &worker->mutex);
        uint64_t again_ns = poll_all(worker);
        const struct timespec until = {(time_t)(again_ns / 1000000000u), (long)(again_ns % 1000000000u)};
        if (worker->first != NULL && again_ns > clock_now_ns())
            (void)pthread_cond_clockwait(&worker->added, &worker->mutex, CLOCK_MONOTONIC, &until);
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

/* With the mutex held. Blocks all signals in the new thread: they are for the program's threads. */
static bool start(worker_t *worker) {
    if (worker->started)
        return true;
    sigset_t all, before;
    pthread_t thread;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    worker->started = pthread_create(&thread, NULL, work, worker) == 0 && pthread_detach(thread) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return worker->started;
}

CUresult stream_enqueue_work(CUcontext context, CUstream stream, bool per_thread, gpu_work_t kernel, actor_t actor,
                             stream_action_t act, void *argument) {
    worker_t *worker = &workers[actor];
    action_t *action = malloc(sizeof *action);
    pthread_mutex_lock(&worker->mutex);
    bool started = start(worker);
    pthread_mutex_unlock(&worker->mutex);
    if (action == NULL || !started) {
        free(action);
        free(argument);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    kernel.held = true;
    pending++;
    *action = (action_t){.gpu = context->gpu, .act = act, .argument = argument};
    action->mark = stream_queue(context, stream, per_thread, kernel);
    pthread_mutex_lock(&worker->mutex);
    add_action(worker, action);
    pthread_mutex_unlock(&worker->mutex);
    return CUDA_SUCCESS;
}

CUresult stream_enqueue(CUcontext context, CUstream stream, bool per_thread, actor_t actor, stream_action_t act,
                        void *argument) {
    const CUgraph *capture = stream_capture(stream);
    if (capture == NULL || *capture == NULL)
        return stream_enqueue_work(context, stream, per_thread, (gpu_work_t){.percent = 0}, actor, act, argument);
    free(argument);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* Host functions and callbacks. */

typedef struct {
    CUhostFn function;
    void *data;
} call_t;

typedef struct {
    CUstreamCallback function;
    CUstream stream;
    void *data;
} callback_t;

static bool call(void *what) {
    const call_t *it = what;
    it->function(it->data);
    return true;
}

static bool call_back(void *what) {
    const callback_t *it = what;
    it->function(it->stream, CUDA_SUCCESS, it->data);
    return true;
}

static CUresult queue(CUstream stream, stream_action_t act, const void *what, size_t bytes) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    void *argument = malloc(bytes);
    if (argument == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(argument, what, bytes);
    return stream_enqueue(context, stream, false, ACTOR_HOST, act, argument);
}

static CUresult host_function_call(CUstream stream, CUhostFn function, void *data) {
    const call_t it = {function, data};
    return queue(stream, call, &it, sizeof it);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph *capture = stream_capture(stream);
    if (capture == NULL || *capture == NULL)
        return host_function_call(stream, function, data);
    const CUDA_HOST_NODE_PARAMS parameters = {function, data};
    return graph_append_work(*capture, WORK_HOST, &parameters) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *data, unsigned flags) {
    if (function == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream_is_capturing(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const callback_t it = {function, stream, data};
    return queue(stream, call_back, &it, sizeof it);
}
