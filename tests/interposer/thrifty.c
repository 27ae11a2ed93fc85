/* A driver that has one handle for streams, which it uses again at once when a stream has ended: libcuda.so.1 before
 * the simulated one, which is libcudb.so.1 here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

/* Where the simulated one has it, AT_ and its name, the compiler is told: to ask dlsym would lead to the hooks. */
#define NEXT(function, ...) ((int (*)(__VA_ARGS__))(base() + AT_##function))
#define HANDLE ((void *)&place)

static void *place; /* the simulated stream that is meant */

static ElfW(Addr) base(void) {
    const struct link_map *simulated = dlopen("libcudb.so.1", RTLD_NOW);
    return simulated->l_addr;
}

static void *meant(void *stream) {
    return stream == HANDLE ? place : stream;
}

int cuStreamCreate(void **stream, unsigned flags) {
    *stream = HANDLE;
    return NEXT(cuStreamCreate, void **, unsigned)(&place, flags);
}

int cuStreamDestroy_v2(void *stream) {
    return NEXT(cuStreamDestroy_v2, void *)(meant(stream));
}

int cuStreamGetCtx(void *stream, void **context) {
    return NEXT(cuStreamGetCtx, void *, void **)(meant(stream), context);
}

int cuEventRecord(void *event, void *stream) {
    return NEXT(cuEventRecord, void *, void *)(event, meant(stream));
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                   void **extra) {
    return NEXT(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                void **, void **)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                                  meant(stream), parameters, extra);
}
