/* Calls CUDA through plain symbol binding, like a program or plugin linked with -lcuda. */
#include <stddef.h>
#ifdef PLUGIN_MAIN
#    include <stdio.h>
#    include <stdlib.h>
#endif

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);

int plugin_allocate(unsigned long long bytes);

int plugin_allocate(unsigned long long bytes) {
    void *context;
    unsigned long long pointer;
    int result = cuInit(0);
    if (result == 0)
        result = cuDevicePrimaryCtxRetain(&context, 0);
    if (result == 0)
        result = cuCtxSetCurrent(context);
    return result == 0 ? cuMemAlloc_v2(&pointer, bytes) : result;
}

#ifdef PLUGIN_BEGINS
/* Runs while the object is being loaded. */
int plugin_begun(void);
static int begun;

__attribute__((constructor)) static void begin(void) {
    begun = plugin_allocate(PLUGIN_BEGINS);
}

int plugin_begun(void) {
    return begun;
}
#endif

#ifdef PLUGIN_MAIN
int main(int count, char **arguments) {
    printf("%d\n", plugin_allocate(count > 1 ? strtoull(arguments[1], NULL, 10) : 0));
    return 0;
}
#endif
