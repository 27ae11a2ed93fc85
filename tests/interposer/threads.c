/* A program whose many short-lived threads use the GPU at once. It cleans up in destructors of thread-local values,
 * as users of the CUDA runtime do, and at exit.
 *
 *   threads THREADS ROUNDS    prints the free bytes at the end */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LAUNCHES 50
#define BYTES (1u << 20)

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuCtxSynchronize(void);
extern int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
extern int cuMemFree_v2(unsigned long long pointer);
extern int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
extern int cuModuleLoadData(void **module, const void *image);
extern int cuModuleGetFunction(void **function, void *module, const char *name);
extern int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                          void **extra);

static pthread_key_t key;
static void *context, *function;
static unsigned long long kept;

static void check(const char *what, int result) {
    if (result == 0)
        return;
    fprintf(stderr, "%s: %d\n", what, result);
    _exit(EXIT_FAILURE);
}

static void launch(void) {
    check("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void forget(void *pointer) {
    launch();
    check("cuMemFree in a destructor", cuMemFree_v2((unsigned long long)(uintptr_t)pointer));
}

static void *work(void *unused) {
    unsigned long long pointer;
    (void)unused;
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuMemAlloc", cuMemAlloc_v2(&pointer, BYTES));
    check("pthread_setspecific", pthread_setspecific(key, (void *)(uintptr_t)pointer));
    for (unsigned i = 0; i < LAUNCHES; i++) {
        unsigned long long other;
        launch();
        check("cuMemAlloc", cuMemAlloc_v2(&other, BYTES));
        check("cuMemFree", cuMemFree_v2(other));
    }
    return NULL;
}

static void at_the_end(void) {
    check("cuMemFree at the end", cuMemFree_v2(kept));
    launch();
    check("cuCtxSynchronize", cuCtxSynchronize());
    printf("ended\n");
}

int main(int count, char **arguments) {
    pthread_t threads[64];
    size_t free_bytes, total_bytes;
    void *module;
    unsigned many = count > 1 ? (unsigned)strtoul(arguments[1], NULL, 10) : 1;
    unsigned rounds = count > 2 ? (unsigned)strtoul(arguments[2], NULL, 10) : 1;
    check("cuInit", cuInit(0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuModuleLoadData", cuModuleLoadData(&module, ""));
    check("cuModuleGetFunction", cuModuleGetFunction(&function, module, "k_1us"));
    check("cuMemAlloc", cuMemAlloc_v2(&kept, BYTES));
    check("pthread_key_create", pthread_key_create(&key, forget));
    check("atexit", atexit(at_the_end));
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < many && i < 64; i++)
            check("pthread_create", pthread_create(&threads[i], NULL, work, NULL));
        for (unsigned i = 0; i < many && i < 64; i++)
            check("pthread_join", pthread_join(threads[i], NULL));
    }
    check("cuMemGetInfo", cuMemGetInfo_v2(&free_bytes, &total_bytes));
    printf("%zu\n", free_bytes);
    return EXIT_SUCCESS;
}
