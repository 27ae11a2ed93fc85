/* The CUDA driver calls that the programs of the benches share. They need no NVIDIA headers. */
#ifndef BENCH_CUDA_CALLS_H
#define BENCH_CUDA_CALLS_H

#include <stdio.h>
#include <stdlib.h>

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuCtxSynchronize(void);
extern int cuModuleLoadData(void **module, const void *image);
extern int cuModuleGetFunction(void **function, void *module, const char *name);
extern int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                          void **extra);

static inline void check(const char *what, int result) {
    if (result == 0)
        return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(EXIT_FAILURE);
}

#endif
