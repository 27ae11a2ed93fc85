/* A driver that returns functions that it does not export, and exports a variant newer than the library:
 * libcuda.so.1 in front of the simulated one, libcudb.so.1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NEXT(function, ...) ((int (*)(__VA_ARGS__))(base() + AT_##function))

static ElfW(Addr) base(void) {
    const struct link_map *simulated = dlopen("libcudb.so.1", RTLD_NOW);
    return simulated->l_addr;
}

static int allocate(unsigned long long *pointer, size_t bytes) {
    return NEXT(cuMemAlloc_v2, unsigned long long *, size_t)(pointer, bytes);
}

int cuMemAlloc_v9(unsigned long long *pointer, size_t bytes);

int cuMemAlloc_v9(unsigned long long *pointer, size_t bytes) {
    return allocate(pointer, bytes);
}

static int query(unsigned long long stream) {
    return NEXT(cuStreamQuery, unsigned long long)(stream);
}

static void *thunk_of(const char *symbol, int version) {
    if (strcmp(symbol, "cuStreamQuery") == 0)
        return (void *)query;
    if (strcmp(symbol, "cuMemAlloc") != 0)
        return NULL;
    return version >= 90000 ? (void *)cuMemAlloc_v9 : (void *)allocate;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    int result =
        NEXT(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *)(symbol, function, 12000, flags, status);
    if (result == 0 && thunk_of(symbol, version) != NULL)
        *function = thunk_of(symbol, version);
    return result;
}

int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
