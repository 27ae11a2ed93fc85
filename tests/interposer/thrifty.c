/* A driver with a single stream handle, reused as soon as the stream is destroyed: libcuda.so.1 in front of the
 * simulated one, libcudb.so.1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

/* The compiler gets the simulated functions' offsets as AT_ and their names, because dlsym would return the hooks. */
#define NEXT(function, ...) ((int (*)(__VA_ARGS__))(base() + AT_##function))
#define HANDLE ((void *)&place)

static void *place; /* the simulated stream behind the handle */

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
