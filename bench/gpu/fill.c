/* Allocates as much memory as it can, by one kind of allocation, and prints how much that was.
 *
 *   fill plain|pitched|managed|async|pool|physical|array FROM_BYTES [MOST_BYTES]
 *
 * It requests FROM_BYTES, halves the size after each refusal, and ends at the smallest size of its kind. It stops at
 * MOST_BYTES, which shows that no limit applies. Prints "filled BYTES", waits for a line, and ends. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUT_OF_MEMORY 2
#define PITCH_BYTES 512u
#define MIB (1ull << 20)

typedef struct {
    int type, id;
} location_t;

typedef struct {
    int type, handles;
    location_t location;
    uint8_t rest[64];
} properties_t;

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} array_t;

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
extern int cuMemAllocPitch_v2(unsigned long long *pointer, size_t *pitch, size_t width, size_t height,
                              unsigned element);
extern int cuMemAllocManaged(unsigned long long *pointer, size_t bytes, unsigned flags);
extern int cuMemAllocAsync(unsigned long long *pointer, size_t bytes, void *stream);
extern int cuMemAllocFromPoolAsync(unsigned long long *pointer, size_t bytes, void *pool, void *stream);
extern int cuDeviceGetDefaultMemPool(void **pool, int device);
extern int cuStreamSynchronize(void *stream);
extern int cuMemCreate(unsigned long long *handle, size_t bytes, const properties_t *properties,
                       unsigned long long flags);
extern int cuArrayCreate_v2(void **array, const array_t *description);

static void check(const char *what, int result) {
    if (result == 0)
        return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(EXIT_FAILURE);
}

static int plain(uint64_t bytes) {
    unsigned long long pointer;
    return cuMemAlloc_v2(&pointer, bytes);
}

static int pitched(uint64_t bytes) {
    unsigned long long pointer;
    size_t pitch;
    int result = cuMemAllocPitch_v2(&pointer, &pitch, PITCH_BYTES, bytes / PITCH_BYTES, 4);
    if (result == 0 && pitch != PITCH_BYTES)
        check("rows of 512 bytes are padded here", -1);
    return result;
}

static int managed(uint64_t bytes) {
    unsigned long long pointer;
    return cuMemAllocManaged(&pointer, bytes, 1);
}

static int async(uint64_t bytes) {
    unsigned long long pointer;
    int result = cuMemAllocAsync(&pointer, bytes, NULL);
    return result != 0 ? result : cuStreamSynchronize(NULL);
}

static int pool(uint64_t bytes) {
    unsigned long long pointer;
    void *found;
    check("cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool(&found, 0));
    int result = cuMemAllocFromPoolAsync(&pointer, bytes, found, NULL);
    return result != 0 ? result : cuStreamSynchronize(NULL);
}

static int physical(uint64_t bytes) {
    const properties_t properties = {.type = 1, .location = {.type = 1}};
    unsigned long long handle;
    return cuMemCreate(&handle, bytes, &properties, 0);
}

/* Rows of 64 KiB. */
static int array(uint64_t bytes) {
    const array_t description = {.width = 65536, .height = bytes / 65536, .format = 1, .channels = 1};
    void *made;
    return cuArrayCreate_v2(&made, &description);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        int (*take)(uint64_t bytes);
        uint64_t least_bytes, most_bytes;
    } kinds[] = {{"plain", plain, 1, UINT64_MAX},       {"pitched", pitched, PITCH_BYTES, UINT64_MAX},
                 {"managed", managed, 1, UINT64_MAX},   {"async", async, 1, UINT64_MAX},
                 {"pool", pool, 1, UINT64_MAX},         {"physical", physical, 2 * MIB, UINT64_MAX},
                 {"array", array, 65536, 2048ull * MIB}};
    void *context;
    bool complete = count == 3 || count == 4;
    uint64_t most_bytes = count == 4 ? strtoull(arguments[3], NULL, 10) : UINT64_MAX;
    for (size_t i = 0; complete && i < sizeof kinds / sizeof *kinds; i++) {
        uint64_t filled = 0, bytes = strtoull(arguments[2], NULL, 10);
        if (strcmp(arguments[1], kinds[i].name) != 0)
            continue;
        check("cuInit", cuInit(0));
        int room = cuDevicePrimaryCtxRetain(&context, 0); /* may fail too: there may be no memory for a context */
        if (room != OUT_OF_MEMORY) {
            check("cuDevicePrimaryCtxRetain", room);
            check("cuCtxSetCurrent", cuCtxSetCurrent(context));
        }
        bytes = bytes < kinds[i].most_bytes ? bytes : kinds[i].most_bytes;
        while (room == 0 && bytes >= kinds[i].least_bytes && filled < most_bytes) {
            uint64_t whole = bytes / kinds[i].least_bytes * kinds[i].least_bytes;
            int result = kinds[i].take(whole);
            if (result == 0)
                filled += whole;
            else if (result == OUT_OF_MEMORY)
                bytes /= 2;
            else
                check(kinds[i].name, result);
        }
        printf("filled %" PRIu64 "\n", filled);
        fflush(stdout);
        (void)getchar();
        return EXIT_SUCCESS;
    }
    fprintf(stderr, "usage: fill plain|pitched|managed|async|pool|physical|array FROM_BYTES [MOST_BYTES]\n");
    return 2;
}
