/* A program that allocates as much of a GPU's memory as it can, in one of CUDA's ways.
 *
 *   fill plain|pitched|managed|async|pool|handles|array|mipmap|graph|mixed
 *
 * Prints "ready". For each line on stdin it allocates until refused, and prints the total of the bytes allocated so
 * far. It keeps them until stdin ends. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST_BYTES (64ull << 20)
#define FOR_EVER UINT64_MAX

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} array_t;

typedef struct {
    int type, handles, location, device;
    uint64_t rest[9];
} properties_t; /* for pools and for memory by handles */

typedef struct {
    properties_t pool;
    const void *access;
    size_t access_count, bytes;
    uint64_t pointer;
} allocation_t;

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);
extern int cuMemAllocPitch_v2(uint64_t *pointer, size_t *pitch, size_t width, size_t height, unsigned element);
extern int cuMemAllocManaged(uint64_t *pointer, size_t bytes, unsigned flags);
extern int cuMemAllocAsync(uint64_t *pointer, size_t bytes, void *stream);
extern int cuMemAllocFromPoolAsync(uint64_t *pointer, size_t bytes, void *pool, void *stream);
extern int cuMemPoolCreate(void **pool, const properties_t *properties);
extern int cuMemPoolSetAttribute(void *pool, int attribute, void *value);
extern int cuMemCreate(uint64_t *handle, size_t bytes, const properties_t *properties, uint64_t flags);
extern int cuArray3DCreate_v2(void **array, const array_t *descriptor);
extern int cuMipmappedArrayCreate(void **array, const array_t *descriptor, unsigned levels);
extern int cuGraphCreate(void **graph, unsigned flags);
extern int cuGraphAddMemAllocNode(void **node, void *graph, const void *before, size_t count, allocation_t *parameters);
extern int cuGraphInstantiateWithFlags(void **exec, void *graph, uint64_t flags);
extern int cuGraphLaunch(void *exec, void *stream);

static const properties_t on_device = {.type = 1, .location = 1};

static bool plain(size_t bytes) {
    uint64_t pointer;
    return cuMemAlloc_v2(&pointer, bytes) == 0;
}

static bool pitched(size_t bytes) {
    uint64_t pointer;
    size_t pitch;
    return cuMemAllocPitch_v2(&pointer, &pitch, 512, bytes / 512, 4) == 0;
}

static bool managed(size_t bytes) {
    uint64_t pointer;
    return cuMemAllocManaged(&pointer, bytes, 1) == 0;
}

static bool async(size_t bytes) {
    uint64_t pointer;
    return cuMemAllocAsync(&pointer, bytes, NULL) == 0;
}

static bool from_pool(size_t bytes) {
    static void *pool;
    uint64_t threshold = FOR_EVER;
    uint64_t pointer;
    if (pool == NULL && (cuMemPoolCreate(&pool, &on_device) != 0 || cuMemPoolSetAttribute(pool, 4, &threshold) != 0))
        return false;
    return cuMemAllocFromPoolAsync(&pointer, bytes, pool, NULL) == 0;
}

static bool by_handle(size_t bytes) {
    uint64_t handle;
    return cuMemCreate(&handle, bytes, &on_device, 0) == 0;
}

static bool array(size_t bytes) {
    const array_t descriptor = {.width = 64, .height = bytes / 64, .format = 1, .channels = 1};
    void *made;
    return cuArray3DCreate_v2(&made, &descriptor) == 0;
}

static bool mipmap(size_t bytes) {
    const array_t descriptor = {.width = 64, .height = bytes / 64, .format = 1, .channels = 1};
    void *made;
    return cuMipmappedArrayCreate(&made, &descriptor, 1) == 0;
}

/* The graph does not free its allocations. */
static bool graph(size_t bytes) {
    allocation_t allocation = {.pool = on_device, .bytes = bytes};
    void *made, *node, *exec;
    return cuGraphCreate(&made, 0) == 0 && cuGraphAddMemAllocNode(&node, made, NULL, 0, &allocation) == 0 &&
           cuGraphInstantiateWithFlags(&exec, made, 0) == 0 && cuGraphLaunch(exec, NULL) == 0;
}

typedef struct {
    const char *name;
    bool (*take)(size_t bytes);
    size_t least_bytes;
} way_t;

static const way_t ways[] = {
    {"plain", plain, 1},   {"pitched", pitched, 512}, {"managed", managed, 1},
    {"async", async, 1},   {"pool", from_pool, 1},    {"handles", by_handle, 2u << 20},
    {"array", array, 512}, {"mipmap", mipmap, 512},   {"graph", graph, 2u << 20},
};
#define WAYS (sizeof ways / sizeof *ways)

static uint64_t fill(const way_t *way) {
    uint64_t got_bytes = 0;
    for (size_t bytes = LARGEST_BYTES; bytes >= way->least_bytes && bytes > 0; bytes /= 2) {
        while (way->take(bytes))
            got_bytes += bytes;
    }
    return got_bytes;
}

/* Allocate one of each in turn until all are refused; then fill the rest with each. */
static uint64_t fill_mixed(void) {
    uint64_t got_bytes = 0;
    bool any = true;
    while (any) {
        any = false;
        for (size_t i = 0; i < WAYS; i++) {
            if (!ways[i].take(2u << 20))
                continue;
            got_bytes += 2u << 20;
            any = true;
        }
    }
    for (size_t i = WAYS; i > 0; i--)
        got_bytes += fill(&ways[i - 1]);
    return got_bytes;
}

int main(int count, char **arguments) {
    char line[16];
    void *context;
    uint64_t got_bytes = 0;
    const way_t *way = NULL;
    for (size_t i = 0; count == 2 && i < WAYS; i++) {
        if (strcmp(arguments[1], ways[i].name) == 0)
            way = &ways[i];
    }
    if (way == NULL && (count != 2 || strcmp(arguments[1], "mixed") != 0))
        return 2;
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0)
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin) != NULL) {
        got_bytes += way != NULL ? fill(way) : fill_mixed();
        printf("%" PRIu64 "\n", got_bytes);
    }
    return 0;
}
