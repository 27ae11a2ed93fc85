/* A driver that ends the process if it uses a context that has ended, or makes any call after the driver's exit. It
 * is libcuda.so.1 in front of the simulated one, libcudb.so.1. Its green contexts have separate contexts, as in real
 * drivers, and contexts that have ended are never reused. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *_Atomic dead;

static void *next(const char *symbol) {
    static void *simulated;
    if (simulated == NULL)
        simulated = dlopen("libcudb.so.1", RTLD_NOW);
    return dlsym(simulated, symbol);
}

static _Atomic bool gone;

/* Other threads see this before the process ends. */
static void end(void) {
    const struct timespec moment = {.tv_nsec = 50000000};
    gone = true;
    nanosleep(&moment, NULL);
}

__attribute__((constructor)) static void begin(void) {
    atexit(end);
}

static void check(const void *context, const char *what) {
    if (!gone && (context == NULL || context != dead))
        return;
    fprintf(stderr, "%s of what has ended\n", what);
    abort();
}

int cuGreenCtxCreate(void **green, void *resources, int device, unsigned flags) {
    void *popped;
    (void)resources;
    (void)flags;
    int result = ((int (*)(void **, unsigned, int))next("cuCtxCreate_v2"))(green, 0, device);
    ((int (*)(void **))next("cuCtxPopCurrent_v2"))(&popped);
    return result;
}

int cuCtxFromGreenCtx(void **context, void *green) {
    *context = green;
    return 0;
}

int cuGreenCtxDestroy(void *green) {
    dead = green;
    return 0;
}

int cuCtxDetach(void *context) {
    dead = context;
    return 0;
}

int cuCtxPushCurrent_v2(void *context) {
    check(context, "cuCtxPushCurrent");
    return ((int (*)(void *))next("cuCtxPushCurrent_v2"))(context);
}

int cuCtxRecordEvent(void *context, void *event) {
    check(context, "cuCtxRecordEvent");
    return ((int (*)(void *, void *))next("cuCtxRecordEvent"))(context, event);
}

int cuEventQuery(void *event) {
    check(NULL, "cuEventQuery");
    return ((int (*)(void *))next("cuEventQuery"))(event);
}
