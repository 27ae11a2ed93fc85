/* A program that forks repeatedly while its threads allocate, free and launch. The child must not wait for a lock
 * that a thread holds at that moment, because no thread of the child would release it.
 *
 *   forks CHILDREN    prints the free bytes at the end */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 8
#define OUT_OF_MEMORY 2
#define NOT_INITIALIZED 3
#define PATIENCE_SECONDS 10

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuCtxSynchronize(void);
extern int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
extern int cuMemFree_v2(unsigned long long pointer);
extern int cuMemAllocAsync(unsigned long long *pointer, size_t bytes, void *stream);
extern int cuMemFreeAsync(unsigned long long pointer, void *stream);
extern int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
extern int cuModuleLoadData(void **module, const void *image);
extern int cuModuleGetFunction(void **function, void *module, const char *name);
extern int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                          void **extra);

static void *context, *function;
static bool ending;

static void expect(const char *what, int result, int expected) {
    if (result == expected)
        return;
    fprintf(stderr, "%s: %d\n", what, result);
    _exit(EXIT_FAILURE);
}

static void *work(void *unused) {
    expect("cuCtxSetCurrent", cuCtxSetCurrent(context), 0);
    while (!__atomic_load_n(&ending, __ATOMIC_RELAXED)) {
        unsigned long long pointer, pooled;
        int result = cuMemAlloc_v2(&pointer, 2u << 20);
        if (result != OUT_OF_MEMORY)
            expect("cuMemAlloc", result, 0);
        if (result == 0)
            expect("cuMemFree", cuMemFree_v2(pointer), 0);
        result = cuMemAllocAsync(&pooled, 1u << 20, NULL);
        if (result == 0)
            expect("cuMemFreeAsync", cuMemFreeAsync(pooled, NULL), 0);
        expect("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 0);
    }
    return unused;
}

/* CUDA does not work in the child. Every call must report that instead of waiting. */
static void child(unsigned number) {
    unsigned long long pointer;
    size_t free_bytes, total_bytes;
    alarm(PATIENCE_SECONDS);
    expect("cuInit in the child", cuInit(0), NOT_INITIALIZED);
    expect("cuMemAlloc in the child", cuMemAlloc_v2(&pointer, 1), NOT_INITIALIZED);
    expect("cuMemAllocAsync in the child", cuMemAllocAsync(&pointer, 1, NULL), NOT_INITIALIZED);
    expect("cuMemGetInfo in the child", cuMemGetInfo_v2(&free_bytes, &total_bytes), NOT_INITIALIZED);
    if (number % 2 == 0)
        raise(SIGKILL);
    _exit(EXIT_SUCCESS);
}

int main(int count, char **arguments) {
    pthread_t threads[THREADS];
    size_t free_bytes, total_bytes;
    void *module;
    unsigned many = count > 1 ? (unsigned)strtoul(arguments[1], NULL, 10) : 1;
    expect("cuInit", cuInit(0), 0);
    expect("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0), 0);
    expect("cuCtxSetCurrent", cuCtxSetCurrent(context), 0);
    expect("cuModuleLoadData", cuModuleLoadData(&module, ""), 0);
    expect("cuModuleGetFunction", cuModuleGetFunction(&function, module, "k_1us"), 0);
    for (unsigned i = 0; i < THREADS; i++)
        expect("pthread_create", pthread_create(&threads[i], NULL, work, NULL), 0);
    for (unsigned i = 0; i < many; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            child(i);
        expect("fork", pid < 0, 0);
        expect("waitpid", waitpid(pid, &status, 0) != pid, 0);
        expect("how the child ended", i % 2 == 0 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0, 1);
    }
    __atomic_store_n(&ending, true, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < THREADS; i++)
        expect("pthread_join", pthread_join(threads[i], NULL), 0);
    expect("cuCtxSynchronize", cuCtxSynchronize(), 0);
    expect("cuMemGetInfo", cuMemGetInfo_v2(&free_bytes, &total_bytes), 0);
    printf("%zu\n", free_bytes);
    return EXIT_SUCCESS;
}
