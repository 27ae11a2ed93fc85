/* A driver that is slow to report whether a primary context is active, so that another thread runs in between:
 * libcuda.so.1 in front of the simulated one, libcudb.so.1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#define TAKES_US 20000

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    const struct link_map *simulated = dlopen("libcudb.so.1", RTLD_NOW);
    int (*next)(int, unsigned *, int *) =
        (int (*)(int, unsigned *, int *))(simulated->l_addr + AT_cuDevicePrimaryCtxGetState);
    int result = next(device, flags, active);
    (void)usleep(TAKES_US);
    return result;
}
