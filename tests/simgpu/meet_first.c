/* Threads of a process, each with its own GPU, whose first kernels wait for each other and all begin at the same
 * moment. Repeats this in new processes; prints how many of them finished.
 *
 *   meet_first TIMES GPUS */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/abi/abi.h"

#define PATIENCE_SECONDS 5

static int gpus;
static atomic_int waiting;

static void check(CUresult result) {
    if (result != CUDA_SUCCESS)
        _exit(2);
}

static void *meet(void *argument) {
    int device = (int)(intptr_t)argument;
    char name[32];
    CUcontext context;
    CUmodule module;
    CUfunction function;
    (void)snprintf(name, sizeof name, "meet%d_10us", gpus);
    check(cuDevicePrimaryCtxRetain(&context, device));
    check(cuCtxSetCurrent(context));
    check(cuModuleLoadData(&module, ""));
    check(cuModuleGetFunction(&function, module, name));
    for (waiting--; waiting > 0;)
        continue;
    check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    check(cuCtxSynchronize());
    return NULL;
}

static void run(void) {
    pthread_t threads[64];
    (void)alarm(PATIENCE_SECONDS);
    check(cuInit(0));
    waiting = gpus;
    for (int i = 0; i < gpus; i++)
        (void)pthread_create(&threads[i], NULL, meet, (void *)(intptr_t)i);
    for (int i = 0; i < gpus; i++)
        (void)pthread_join(threads[i], NULL);
    _exit(0);
}

int main(int count, char **arguments) {
    int times = count > 2 ? atoi(arguments[1]) : 0, ended = 0;
    gpus = count > 2 ? atoi(arguments[2]) : 0;
    for (int i = 0; i < times; i++) {
        pid_t child = fork();
        int status = 0;
        if (child == 0)
            run();
        (void)waitpid(child, &status, 0);
        ended += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    printf("%d\n", ended);
    return 0;
}
