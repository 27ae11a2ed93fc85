/* A statically linked CUDA program: no loader reads the preload file for it. It is linked with the simulated driver's
 * objects, and needs nothing in its container. It allocates each number of bytes, prints CUDA's errors, and stays. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);

int main(int count, char **arguments) {
    void *context = NULL;
    unsigned long long pointer;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0)
        return EXIT_FAILURE;
    for (int i = 1; i < count; i++)
        printf("%s %d\n", arguments[i], cuMemAlloc_v2(&pointer, strtoull(arguments[i], NULL, 10)));
    (void)pause();
    return EXIT_SUCCESS;
}
