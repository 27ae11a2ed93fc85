/* A program whose work on one GPU waits for work that it has not launched yet, like collectives.
 *
 *   dependent thread SMALL ROUNDS     one thread launches a kernel on GPU 0 that waits for its partner, SMALL kernels
 *                                     behind it, then the partner on GPU 1
 *   dependent threads SMALL ROUNDS    two threads: one launches that kernel and SMALL others; the other one needs a
 *                                     small kernel on GPU 0 before it launches the partner on GPU 1
 *
 * Prints "ready", reads a line, and prints the seconds that the rounds took. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_calls.h"

#define GPUS 2

static void *contexts[GPUS], *partners[GPUS], *small[GPUS];
static unsigned smalls, rounds;
static pthread_barrier_t barrier;

static void launch(int device, void *function) {
    check("cuCtxSetCurrent", cuCtxSetCurrent(contexts[device]));
    check("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void wait_for(int device) {
    check("cuCtxSetCurrent", cuCtxSetCurrent(contexts[device]));
    check("cuCtxSynchronize", cuCtxSynchronize());
}

static void begin_round(void) {
    launch(0, partners[0]);
    for (unsigned i = 0; i < smalls; i++)
        launch(0, small[0]);
}

static void *help(void *unused) {
    for (unsigned i = 0; i < rounds; i++) {
        const struct timespec moment = {.tv_nsec = 300000}; /* the other thread has started by then */
        pthread_barrier_wait(&barrier);
        nanosleep(&moment, NULL);
        launch(0, small[0]);
        launch(1, partners[1]);
        wait_for(1);
        pthread_barrier_wait(&barrier);
    }
    return unused;
}

static void by_two_threads(void) {
    pthread_t helper;
    pthread_barrier_init(&barrier, NULL, 2);
    check("pthread_create", pthread_create(&helper, NULL, help, NULL));
    for (unsigned i = 0; i < rounds; i++) {
        pthread_barrier_wait(&barrier);
        begin_round();
        wait_for(0);
        pthread_barrier_wait(&barrier);
    }
    pthread_join(helper, NULL);
}

static void by_one_thread(void) {
    for (unsigned i = 0; i < rounds; i++) {
        begin_round();
        launch(1, partners[1]);
        wait_for(1);
        wait_for(0);
    }
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int count, char **arguments) {
    bool threads = count == 4 && strcmp(arguments[1], "threads") == 0;
    if (count != 4 || (!threads && strcmp(arguments[1], "thread") != 0))
        return 2;
    smalls = (unsigned)atoi(arguments[2]);
    rounds = (unsigned)atoi(arguments[3]);
    check("cuInit", cuInit(0));
    for (int i = 0; i < GPUS; i++) {
        void *module;
        check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&contexts[i], i));
        check("cuCtxSetCurrent", cuCtxSetCurrent(contexts[i]));
        check("cuModuleLoadData", cuModuleLoadData(&module, ""));
        check("cuModuleGetFunction", cuModuleGetFunction(&partners[i], module, "meet2_500us"));
        check("cuModuleGetFunction", cuModuleGetFunction(&small[i], module, "k_10us"));
    }
    puts("ready");
    fflush(stdout);
    (void)getchar();
    double began = now_seconds();
    if (threads)
        by_two_threads();
    else
        by_one_thread();
    printf("%.6f\n", now_seconds() - began);
    return 0;
}
