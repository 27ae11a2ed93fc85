/* A driver that ends the process when a context is used that has ended: libcuda.so.1 before the simulated one, which is
 * libcudb.so.1 here. Its green contexts are contexts of their own, as real ones are; ended ones are never made again.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static void *_Atomic dead;

static void *next(const char *symbol) {
    static void *simulated;
    if (simulated == NULL)
        simulated = dlopen("libcudb.so.1", RTLD_NOW);
    return dlsym(simulated, symbol);
}

static void check(const void *context, const char *what) {
    if (context == NULL || context != dead)
        return;
    fprintf(stderr, "%s of a context that has ended\n", what);
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
