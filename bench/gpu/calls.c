/* The cost of driver calls: nanoseconds each, medians of short rounds.
 *
 * It finds functions as the CUDA runtime does, by cuGetProcAddress. Prints a line a figure: name, nanoseconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../launches/spin.h"

#define ROUNDS 200
#define LEAST_ROUNDS 9
#define ROUNDS_NS 1.5e9 /* next to a busy tenant, each round may have to wait for its turn */
#define LAUNCHES 256    /* fewer than the driver queues */
#define PAIRS 16
#define GRAPHS 16
#define GRAPH_KERNELS 20
#define LIVE 4000
#define LIVE_BYTES 65536
#define PAIR_BYTES (1u << 20)
#define PER_THREAD 2

#define FUNCTIONS                                                                                                      \
    FUNCTION(init, "cuInit", 2000, 0, (unsigned))                                                                      \
    FUNCTION(retain, "cuDevicePrimaryCtxRetain", 7000, 0, (void **, int))                                              \
    FUNCTION(set_current, "cuCtxSetCurrent", 4000, 0, (void *))                                                        \
    FUNCTION(synchronize, "cuCtxSynchronize", 2000, 0, (void))                                                         \
    FUNCTION(load, "cuModuleLoadData", 2000, 0, (void **, const void *))                                               \
    FUNCTION(find, "cuModuleGetFunction", 2000, 0, (void **, void *, const char *))                                    \
    FUNCTION(stream_create, "cuStreamCreate", 2000, 0, (void **, unsigned))                                            \
    FUNCTION(begin, "cuStreamBeginCapture", 10010, 0, (void *, int))                                                   \
    FUNCTION(end, "cuStreamEndCapture", 10000, 0, (void *, void **))                                                   \
    FUNCTION(instantiate, "cuGraphInstantiateWithFlags", 11040, 0, (void **, void *, unsigned long long))              \
    FUNCTION(graph_launch, "cuGraphLaunch", 10000, 0, (void *, void *))                                                \
    FUNCTION(launch, "cuLaunchKernel", 4000, 0, LAUNCH_PARAMETERS)                                                     \
    FUNCTION(launch_per_thread, "cuLaunchKernel", 7000, PER_THREAD, LAUNCH_PARAMETERS)                                 \
    FUNCTION(launch_ex, "cuLaunchKernelEx", 11060, 0, (const config_t *, void *, void **, void **))                    \
    FUNCTION(allocate, "cuMemAlloc", 3020, 0, (unsigned long long *, size_t))                                          \
    FUNCTION(release, "cuMemFree", 3020, 0, (unsigned long long))                                                      \
    FUNCTION(allocate_async, "cuMemAllocAsync", 11020, 0, (unsigned long long *, size_t, void *))                      \
    FUNCTION(release_async, "cuMemFreeAsync", 11020, 0, (unsigned long long, void *))
#define LAUNCH_PARAMETERS                                                                                              \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)

typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
} config_t;

static struct {
#define FUNCTION(member, name, version, flags, parameters) int(*member) parameters;
    FUNCTIONS
#undef FUNCTION
} cuda;

static const struct {
    void **target;
    const char *name;
    int version, flags;
} functions[] = {
#define FUNCTION(member, name, version, flags, parameters) {(void **)&cuda.member, name, version, flags},
    FUNCTIONS
#undef FUNCTION
};

static void *function, *stream, *graph_exec;
static spin_parameters_t parameters;
static unsigned long long live[LIVE];

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void check(const char *what, int result) {
    if (result == 0)
        return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(EXIT_FAILURE);
}

static void prepare(void) {
    typedef int get_address_t(const char *, void **, int, uint64_t, int *);
    get_address_t *get_address = NULL;
    void *context, *module, *graph;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        exit(EXIT_FAILURE);
    *(void **)&get_address = dlsym(driver, "cuGetProcAddress_v2");
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        int status;
        check(functions[i].name, get_address(functions[i].name, functions[i].target, functions[i].version,
                                             (uint64_t)functions[i].flags, &status));
    }
    double begun = now_ns();
    check("cuInit", cuda.init(0));
    check("cuDevicePrimaryCtxRetain", cuda.retain(&context, 0));
    printf("init %.0f\n", now_ns() - begun);
    check("cuCtxSetCurrent", cuda.set_current(context));
    check("cuModuleLoadData", cuda.load(&module, spin_module));
    check("cuModuleGetFunction", cuda.find(&function, module, SPIN_KERNEL));
    check("cuStreamCreate", cuda.stream_create(&stream, 0));
    spin_set(&parameters, 0);
    check("cuStreamBeginCapture", cuda.begin(stream, 0));
    for (unsigned i = 0; i < GRAPH_KERNELS; i++)
        check("capture", cuda.launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.pointers, NULL));
    check("cuStreamEndCapture", cuda.end(stream, &graph));
    check("cuGraphInstantiate", cuda.instantiate(&graph_exec, graph, 0));
}

static void launch(void) {
    check("cuLaunchKernel", cuda.launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.pointers, NULL));
}

static void launch_per_thread(void) {
    check("cuLaunchKernel", cuda.launch_per_thread(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters.pointers, NULL));
}

static void launch_ex(void) {
    const config_t config = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = stream};
    check("cuLaunchKernelEx", cuda.launch_ex(&config, function, parameters.pointers, NULL));
}

static void launch_graph(void) {
    check("cuGraphLaunch", cuda.graph_launch(graph_exec, stream));
}

static void pair(void) {
    unsigned long long pointer;
    check("cuMemAlloc", cuda.allocate(&pointer, PAIR_BYTES));
    check("cuMemFree", cuda.release(pointer));
}

static void pair_async(void) {
    unsigned long long pointer;
    check("cuMemAllocAsync", cuda.allocate_async(&pointer, PAIR_BYTES, stream));
    check("cuMemFreeAsync", cuda.release_async(pointer, stream));
}

static int compare(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

/* The GPU is idle before each round, so that no call waits for it. */
static void measure(const char *name, void (*call)(void), unsigned count) {
    double rounds[ROUNDS], until = now_ns() + ROUNDS_NS;
    unsigned round = 0;
    for (; round < ROUNDS && (round < LEAST_ROUNDS || now_ns() < until); round++) {
        check("cuCtxSynchronize", cuda.synchronize());
        double begun = now_ns();
        for (unsigned i = 0; i < count; i++)
            call();
        rounds[round] = (now_ns() - begun) / count;
    }
    qsort(rounds, round, sizeof *rounds, compare);
    printf("%s %.1f\n", name, rounds[round / 2]);
}

int main(void) {
    prepare();
    measure("launch", launch, LAUNCHES);
    measure("launch", launch, LAUNCHES); /* the first one warms up: the later line counts */
    measure("launch_per_thread", launch_per_thread, LAUNCHES);
    measure("launch_ex", launch_ex, LAUNCHES);
    measure("graph_launch", launch_graph, GRAPHS);
    measure("alloc_pair", pair, PAIRS);
    measure("alloc_async_pair", pair_async, PAIRS);
    for (unsigned i = 0; i < LIVE; i++)
        check("cuMemAlloc", cuda.allocate(&live[i], LIVE_BYTES));
    measure("alloc_pair_4000_live", pair, PAIRS);
    return EXIT_SUCCESS;
}
