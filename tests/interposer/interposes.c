/* Another preloaded library that replaces the driver's functions, as those for checkpoints do, in the results of
 * dlsym and cuGetProcAddress. It expects exported functions: a result that is not the start of one is an error. At
 * exit it prints how many allocations it has seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int allocate_t(unsigned long long *pointer, size_t bytes);
typedef int find_t(const char *symbol, void **function, int version, uint64_t flags, int *status);

static allocate_t *real_allocate;
static find_t *real_find;
static unsigned allocations;

static void *next_dlsym(void *handle, const char *symbol) {
    static void *(*next)(void *, const char *);
    if (next == NULL)
        *(void **)&next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return next(handle, symbol);
}

static int allocate(unsigned long long *pointer, size_t bytes) {
    allocations++;
    return real_allocate(pointer, bytes);
}

static void check(const void *function) {
    Dl_info place;
    if (dladdr(function, &place) == 0 || place.dli_saddr != function)
        abort();
}

static int find(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    int result = real_find(symbol, function, version, flags, status);
    if (result != 0 || *function == NULL)
        return result;
    check(*function);
    if (strcmp(symbol, "cuMemAlloc") == 0) {
        *(void **)&real_allocate = *function;
        *function = (void *)allocate;
    }
    return result;
}

void *dlsym(void *restrict handle, const char *restrict symbol) {
    void *found = next_dlsym(handle, symbol);
    if (found == NULL || strcmp(symbol, "cuGetProcAddress_v2") != 0)
        return found;
    *(void **)&real_find = found;
    return (void *)find;
}

static void __attribute__((destructor)) tell(void) {
    printf("saw %u allocations\n", allocations);
}
