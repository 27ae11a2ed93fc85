/* Kills programs between any two instructions of their GPU calls, while another program continues to use the GPU.
 *
 *   killed ROUNDS
 *
 * Counts the instructions of launching in two streams that wait for each other, and of waiting for them. Then kills
 * a program after more and more of them. After each kill, the other program must finish kernels. Prints the number
 * of instructions, and the number of rounds in which the kernels finished. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/abi/abi.h"

#define PATIENCE_SECONDS 10

static CUstream streams[2];
static CUevent event;
static CUfunction whole, quarter;

static void check(CUresult result) {
    if (result != CUDA_SUCCESS)
        _exit(2);
}

static void prepare(void) {
    CUcontext context;
    CUmodule module;
    check(cuInit(0));
    check(cuDevicePrimaryCtxRetain(&context, 0));
    check(cuCtxSetCurrent(context));
    check(cuModuleLoadData(&module, ""));
    check(cuModuleGetFunction(&whole, module, "k_20us"));
    check(cuModuleGetFunction(&quarter, module, "k_25pct_20us"));
    check(cuEventCreate(&event, 0));
    for (unsigned i = 0; i < 2; i++)
        check(cuStreamCreate(&streams[i], 1));
}

static void launch(CUfunction function, CUstream stream) {
    check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static void use(void) {
    launch(quarter, streams[0]);
    check(cuEventRecord(event, streams[0]));
    check(cuStreamWaitEvent(streams[1], event, 0));
    launch(whole, streams[1]);
    launch(quarter, NULL);
    check(cuCtxSynchronize());
}

static void survive(int in, int out) {
    char order;
    prepare();
    while (read(in, &order, 1) == 1) {
        (void)alarm(PATIENCE_SECONDS);
        use();
        (void)alarm(0);
        if (write(out, "", 1) != 1)
            break;
    }
    _exit(0);
}

/* Single-steps a new program for at most this long; returns how many instructions that were. */
static unsigned kill_after(unsigned most) {
    int status = 0;
    unsigned steps = 0;
    pid_t pid = fork();
    if (pid == 0) {
        prepare();
        (void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        (void)raise(SIGSTOP);
        use();
        _exit(0);
    }
    (void)waitpid(pid, &status, 0);
    for (; steps < most && WIFSTOPPED(status); steps++) {
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0 || waitpid(pid, &status, 0) != pid)
            break;
    }
    if (!WIFEXITED(status)) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, &status, 0);
    }
    return steps;
}

int main(int count, char **arguments) {
    unsigned rounds = count > 1 ? (unsigned)atoi(arguments[1]) : 0, survived = 0;
    int to[2], from[2];
    char answer;
    if (pipe(to) != 0 || pipe(from) != 0)
        return 1;
    pid_t survivor = fork();
    if (survivor == 0) {
        close(to[1]);
        survive(to[0], from[1]);
    }
    close(from[1]);
    unsigned all = kill_after(1000000);
    for (unsigned round = 0; round < rounds; round++) {
        (void)kill_after((unsigned)((uint64_t)all * round / rounds));
        if (write(to[1], "", 1) != 1 || read(from[0], &answer, 1) != 1)
            break;
        survived++;
    }
    printf("%u %u\n", all, survived);
    return 0;
}
