/* A program whose threads are cancelled or interrupted by signals inside CUDA, while other threads go on.
 *
 *   cancelled start     cancels a thread that initializes CUDA; then another one initializes it
 *   cancelled gate      cancels a thread that waits to launch; then another one launches
 *   cancelled full      cancels a thread that asks the arbiter for the memory of dead processes; then another one
 *                       allocates
 *   cancelled queue     cancels threads that launch without pause, one after another; then another one launches
 *   cancelled signals   threads allocate up to the limit and launch while signals keep arriving */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 8
#define SUCCESS 0
#define OUT_OF_MEMORY 2

extern int cuInit(unsigned flags);
extern int cuDeviceTotalMem_v2(size_t *bytes, int device);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuCtxSynchronize(void);
extern int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
extern int cuMemAllocAsync(unsigned long long *pointer, size_t bytes, void *stream);
extern int cuMemFree_v2(unsigned long long pointer);
extern int cuModuleLoadData(void **module, const void *image);
extern int cuModuleGetFunction(void **function, void *module, const char *name);
extern int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                          void **extra);

static void *context, *function;
static unsigned interruptions;
static bool ending;

static void check(const char *what, int result) {
    if (result == SUCCESS)
        return;
    fprintf(stderr, "%s: %d\n", what, result);
    _exit(EXIT_FAILURE);
}

static void launch(void) {
    check("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void begin(const char *kernel) {
    void *module;
    check("cuInit", cuInit(0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuModuleLoadData", cuModuleLoadData(&module, ""));
    check("cuModuleGetFunction", cuModuleGetFunction(&function, module, kernel));
}

static void *start_cancelled(void *unused) {
    size_t bytes;
    pthread_cancel(pthread_self());
    (void)cuDeviceTotalMem_v2(&bytes, 0); /* joins the share; the driver is not initialized and so does not interfere */
    pthread_testcancel();
    return unused;
}

static void *launch_once(void *unused) {
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    launch();
    pthread_testcancel();
    return unused;
}

/* The pool's figures are being changed meanwhile. */
static void *allocate_cancelled(void *unused) {
    unsigned long long pointer;
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    pthread_cancel(pthread_self());
    (void)cuMemAllocAsync(&pointer, 64u << 20, NULL);
    pthread_testcancel();
    return unused;
}

static void *launch_for_ever(void *unused) {
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    for (;;) {
        launch();
        pthread_testcancel();
    }
    return unused;
}

static void *allocate_and_launch(void *unused) {
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    while (!__atomic_load_n(&ending, __ATOMIC_RELAXED)) {
        unsigned long long pointer;
        int result = cuMemAlloc_v2(&pointer, 3u << 20);
        if (result != OUT_OF_MEMORY)
            check("cuMemAlloc", result);
        launch();
        if (result == SUCCESS)
            check("cuMemFree", cuMemFree_v2(pointer));
    }
    return unused;
}

static void interrupted(int signal) {
    (void)signal;
    __atomic_add_fetch(&interruptions, 1, __ATOMIC_RELAXED);
}

static void start(pthread_t *thread, void *(*run)(void *)) {
    check("pthread_create", pthread_create(thread, NULL, run, NULL));
}

static void expect_cancelled(pthread_t thread) {
    void *result;
    check("pthread_join", pthread_join(thread, &result));
    check("it was cancelled", result != PTHREAD_CANCELED);
}

static void at_the_gate(void) {
    pthread_t thread;
    begin("k_1us");
    start(&thread, launch_once);
    printf("waiting\n");
    (void)getchar();
    pthread_cancel(thread);
    printf("cancelled\n");
    expect_cancelled(thread);
    launch();
    check("cuCtxSynchronize", cuCtxSynchronize());
    printf("idle\n");
    (void)getchar();
}

static void when_it_is_full(void) {
    unsigned long long all, more;
    pthread_t thread;
    begin("k_1us");
    check("cuMemAlloc", cuMemAlloc_v2(&all, 96u << 20));
    start(&thread, allocate_cancelled);
    expect_cancelled(thread);
    check("there is nothing more", cuMemAlloc_v2(&more, 64u << 20) != OUT_OF_MEMORY);
    check("cuMemFree", cuMemFree_v2(all));
    check("cuMemAllocAsync", cuMemAllocAsync(&more, 64u << 20, NULL));
}

static void in_the_queue(void) {
    pthread_t threads[THREADS];
    begin("k_500us");
    for (unsigned i = 0; i < THREADS; i++)
        start(&threads[i], launch_for_ever);
    for (unsigned i = 0; i < THREADS; i++) {
        usleep(20000 + 1234 * i);
        pthread_cancel(threads[i]);
        expect_cancelled(threads[i]);
    }
    for (unsigned i = 0; i < 20; i++)
        launch();
    check("cuCtxSynchronize", cuCtxSynchronize());
}

static void among_signals(void) {
    pthread_t threads[THREADS];
    struct sigaction action = {.sa_handler = interrupted}; /* and no SA_RESTART */
    sigaction(SIGUSR1, &action, NULL);
    begin("k_1us");
    for (unsigned i = 0; i < THREADS; i++)
        start(&threads[i], allocate_and_launch);
    for (unsigned i = 0; i < 4000; i++) {
        pthread_kill(threads[i % THREADS], SIGUSR1);
        usleep(50);
    }
    __atomic_store_n(&ending, true, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < THREADS; i++)
        check("pthread_join", pthread_join(threads[i], NULL));
    check("there were signals", interruptions < THREADS);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IONBF, 0);
    if (strcmp(what, "start") == 0) {
        pthread_t thread;
        start(&thread, start_cancelled);
        expect_cancelled(thread);
        begin("k_1us");
        launch();
    } else if (strcmp(what, "gate") == 0) {
        at_the_gate();
    } else if (strcmp(what, "full") == 0) {
        when_it_is_full();
    } else if (strcmp(what, "queue") == 0) {
        in_the_queue();
    } else if (strcmp(what, "signals") == 0) {
        among_signals();
    }
    printf("went on\n");
    return EXIT_SUCCESS;
}
