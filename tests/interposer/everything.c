/* Threads that use a share in every way at once for some time: launches, streams, captures, contexts, all kinds of
 * memory, and lookups of functions.
 *
 *   everything SECONDS    prints "begun", and at the end the number of successes and failures of each way; runs up to a
 *                         minute longer if a way has not succeeded
 *
 * Failures are expected: memory may be exhausted, and another thread may break a capture. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS 2
#define MIB ((size_t)1 << 20)
#define THREAD_LOCAL 1
#define LAUNCHES 10
#define LOOK_US 100000u
#define MOST_LOOKS 600u

typedef unsigned long long pointer_t;

extern int cuInit(unsigned flags);
extern int cuArrayCreate_v2(void **array, const void *descriptor);
extern int cuArrayDestroy(void *array);
extern int cuCtxCreate_v2(void **context, unsigned flags, int device);
extern int cuCtxDestroy_v2(void *context);
extern int cuCtxSetCurrent(void *context);
extern int cuCtxSynchronize(void);
extern int cuDevicePrimaryCtxRelease_v2(int device);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuEventCreate(void **event, unsigned flags);
extern int cuEventDestroy_v2(void *event);
extern int cuEventRecord(void *event, void *stream);
extern int cuEventSynchronize(void *event);
extern int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status);
extern int cuGraphDestroy(void *graph);
extern int cuGraphExecDestroy(void *exec);
extern int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
extern int cuGraphLaunch(void *exec, void *stream);
extern int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                          void **extra);
extern int cuMemAddressFree(pointer_t pointer, size_t bytes);
extern int cuMemAddressReserve(pointer_t *pointer, size_t bytes, size_t alignment, pointer_t wanted, uint64_t flags);
extern int cuMemAllocAsync(pointer_t *pointer, size_t bytes, void *stream);
extern int cuMemAllocFromPoolAsync(pointer_t *pointer, size_t bytes, void *pool, void *stream);
extern int cuMemAlloc_v2(pointer_t *pointer, size_t bytes);
extern int cuMemCreate(pointer_t *handle, size_t bytes, const void *properties, uint64_t flags);
extern int cuMemFreeAsync(pointer_t pointer, void *stream);
extern int cuMemFree_v2(pointer_t pointer);
extern int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
extern int cuMemMap(pointer_t pointer, size_t bytes, size_t offset, pointer_t handle, uint64_t flags);
extern int cuMemPoolCreate(void **pool, const void *properties);
extern int cuMemPoolDestroy(void *pool);
extern int cuMemPoolTrimTo(void *pool, size_t keep_bytes);
extern int cuMemRelease(pointer_t handle);
extern int cuMemUnmap(pointer_t pointer, size_t bytes);
extern int cuModuleGetFunction(void **function, void *module, const char *name);
extern int cuModuleLoadData(void **module, const void *image);
extern int cuStreamBeginCapture_v2(void *stream, int mode);
extern int cuStreamCreate(void **stream, unsigned flags);
extern int cuStreamDestroy_v2(void *stream);
extern int cuStreamEndCapture(void *stream, void **graph);
extern int cuStreamSynchronize(void *stream);

/* The common beginning of CUmemAllocationProp and CUmemPoolProps. The rest stays zero. */
typedef struct {
    int type, handle_types, place, device;
    char rest[128];
} properties_t;

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} array_t;

/* One round on a GPU whose context is current. Returns true if everything succeeded. */
typedef bool turn_t(int device, void *kernel);

static const properties_t pinned[GPUS] = {{1, 0, 1, 0, ""}, {1, 0, 1, 1, ""}};
static void *contexts[GPUS];
static atomic_bool over;

static bool launch(void *kernel, void *stream) {
    return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == 0;
}

static bool load(void **kernel) {
    void *module;
    return cuModuleLoadData(&module, "") == 0 && cuModuleGetFunction(kernel, module, "k_100us") == 0;
}

static bool launches(int device, void *kernel) {
    (void)device;
    bool well = true;
    for (unsigned i = 0; i < LAUNCHES; i++)
        well &= launch(kernel, NULL);
    return well & (cuCtxSynchronize() == 0);
}

static bool streams(int device, void *kernel) {
    (void)device;
    void *stream, *event;
    if (cuStreamCreate(&stream, 1) != 0)
        return false;
    bool well = launch(kernel, stream);
    if (cuEventCreate(&event, 2) == 0)
        well &= cuEventRecord(event, stream) == 0 && cuEventSynchronize(event) == 0 && cuEventDestroy_v2(event) == 0;
    return (cuStreamDestroy_v2(stream) == 0) & well;
}

/* Includes memory, which then belongs to the graph. */
static void *graph_of(void *stream, void *kernel) {
    void *graph = NULL;
    pointer_t pointer;
    if (cuStreamBeginCapture_v2(stream, THREAD_LOCAL) != 0)
        return NULL;
    bool allocated = cuMemAllocAsync(&pointer, MIB, stream) == 0;
    for (unsigned i = 0; i < LAUNCHES; i++)
        (void)launch(kernel, stream);
    if (allocated)
        (void)cuMemFreeAsync(pointer, stream);
    (void)cuStreamEndCapture(stream, &graph);
    return graph;
}

static bool captures(int device, void *kernel) {
    (void)device;
    void *stream, *exec;
    if (cuStreamCreate(&stream, 1) != 0)
        return false;
    void *graph = graph_of(stream, kernel);
    bool well = graph != NULL && cuGraphInstantiateWithFlags(&exec, graph, 0) == 0;
    if (well) {
        well = cuGraphLaunch(exec, stream) == 0 && cuStreamSynchronize(stream) == 0;
        well &= cuGraphExecDestroy(exec) == 0;
    }
    if (graph != NULL)
        (void)cuGraphDestroy(graph);
    return (cuStreamDestroy_v2(stream) == 0) & well;
}

static bool own_contexts(int device, void *unused) {
    (void)unused;
    void *context, *kernel;
    pointer_t pointer;
    if (cuCtxCreate_v2(&context, 0, device) != 0)
        return false;
    bool well = cuMemAlloc_v2(&pointer, MIB) == 0 && load(&kernel) && launch(kernel, NULL);
    well &= cuCtxDestroy_v2(context) == 0;
    return (cuCtxSetCurrent(contexts[device]) == 0) & well;
}

static bool primary_contexts(int device, void *kernel) {
    void *context;
    bool well = cuDevicePrimaryCtxRetain(&context, device) == 0 && launch(kernel, NULL);
    return (cuDevicePrimaryCtxRelease_v2(device) == 0) & well;
}

static bool memory(int device, void *unused) {
    (void)unused;
    size_t free_bytes, total_bytes;
    pointer_t pointer, handle, place;
    const array_t form = {64, 64, 1, 4};
    void *array;
    bool well = cuMemAlloc_v2(&pointer, MIB) == 0 && cuMemFree_v2(pointer) == 0;
    well &= cuMemGetInfo_v2(&free_bytes, &total_bytes) == 0;
    well &= cuArrayCreate_v2(&array, &form) == 0 && cuArrayDestroy(array) == 0;
    if (cuMemCreate(&handle, 2 * MIB, &pinned[device], 0) != 0)
        return false;
    if (cuMemAddressReserve(&place, 2 * MIB, 0, 0, 0) == 0) {
        well &= cuMemMap(place, 2 * MIB, 0, handle, 0) == 0 && cuMemUnmap(place, 2 * MIB) == 0;
        well &= cuMemAddressFree(place, 2 * MIB) == 0;
    }
    return (cuMemRelease(handle) == 0) & well;
}

static bool pools(int device, void *unused) {
    (void)unused;
    void *pool, *stream;
    pointer_t one, other;
    if (cuStreamCreate(&stream, 1) != 0)
        return false;
    bool well = cuMemPoolCreate(&pool, &pinned[device]) == 0;
    if (well) {
        well = cuMemAllocFromPoolAsync(&one, MIB, pool, stream) == 0 && cuMemFreeAsync(one, stream) == 0;
        well &= cuStreamSynchronize(stream) == 0 && cuMemPoolTrimTo(pool, 0) == 0 && cuMemPoolDestroy(pool) == 0;
    }
    well &= cuMemAllocAsync(&other, MIB, stream) == 0 && cuMemFreeAsync(other, stream) == 0;
    return (cuStreamDestroy_v2(stream) == 0) & well;
}

/* Looks up functions as the CUDA runtime does, and others. */
static bool searches(int device, void *unused) {
    (void)device, (void)unused;
    void *function = NULL;
    int (*total)(size_t *, int) = NULL;
    size_t bytes;
    bool well = cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, NULL) == 0 && function != NULL;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY);
    *(void **)&total = library != NULL ? dlsym(library, "cuDeviceTotalMem_v2") : NULL;
    well &= total != NULL && total(&bytes, 0) == 0 && dlsym(RTLD_DEFAULT, "cuNoSuchFunction") == NULL;
    if (library != NULL)
        (void)dlclose(library);
    return well;
}

static struct {
    const char *name;
    turn_t *turn;
    atomic_ulong well, ill;
} ways[] = {
    {"launches", launches, 0, 0},
    {"streams", streams, 0, 0},
    {"captures", captures, 0, 0},
    {"own contexts", own_contexts, 0, 0},
    {"primary contexts", primary_contexts, 0, 0},
    {"memory", memory, 0, 0},
    {"pools", pools, 0, 0},
    {"searches", searches, 0, 0},
};
#define WAYS (sizeof ways / sizeof *ways)

static bool has_each_gone_well(void) {
    for (size_t i = 0; i < WAYS; i++) {
        if (atomic_load(&ways[i].well) == 0)
            return false;
    }
    return true;
}

static pthread_barrier_t barrier;

/* All threads start at once, with the process's first CUDA call. */
static void *work(void *number) {
    size_t at = (size_t)(uintptr_t)number;
    int device = (int)(at / WAYS);
    void *kernel = NULL, *context = NULL;
    (void)pthread_barrier_wait(&barrier);
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, device) != 0)
        abort();
    if (at % WAYS == 0)
        contexts[device] = context;
    (void)pthread_barrier_wait(&barrier);
    if (cuCtxSetCurrent(context) != 0 || !load(&kernel))
        abort();
    while (!atomic_load(&over))
        atomic_fetch_add(ways[at % WAYS].turn(device, kernel) ? &ways[at % WAYS].well : &ways[at % WAYS].ill, 1);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[GPUS * WAYS];
    double seconds = count > 1 ? strtod(arguments[1], NULL) : 1;
    pthread_barrier_init(&barrier, NULL, GPUS * WAYS + 1);
    for (size_t i = 0; i < GPUS * WAYS; i++) {
        if (pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) != 0)
            abort();
    }
    (void)pthread_barrier_wait(&barrier);
    (void)pthread_barrier_wait(&barrier);
    printf("begun\n");
    (void)fflush(stdout);
    usleep((useconds_t)(seconds * 1e6));
    /* On a busy machine, continue until each way has succeeded. */
    for (unsigned looks = 0; looks < MOST_LOOKS && !has_each_gone_well(); looks++)
        usleep(LOOK_US);
    atomic_store(&over, true);
    for (size_t i = 0; i < GPUS * WAYS; i++)
        (void)pthread_join(threads[i], NULL);
    for (size_t i = 0; i < WAYS; i++)
        printf("%lu %lu %s\n", atomic_load(&ways[i].well), atomic_load(&ways[i].ill), ways[i].name);
    return EXIT_SUCCESS;
}
