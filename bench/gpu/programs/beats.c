/* Launches kernels and waits for each; records completion times, which show the effect of other tenants.
 *
 *   beats KERNEL_US
 *
 * Prints "ready" after a first kernel, starts at the first line of stdin and stops at the second, or at the end of
 * stdin. Then it prints one line: the completion times in microseconds of CLOCK_MONOTONIC. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../launches/cuda_calls.h"
#include "../../launches/spin.h"

#define MOST_BEATS 1000000

static int64_t moments_us[MOST_BEATS];

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int main(int count, char **arguments) {
    void *context, *module, *function;
    spin_parameters_t parameters;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    unsigned beats = 0;
    char line[2];
    if (count != 2) {
        fprintf(stderr, "usage: beats KERNEL_US\n");
        return 2;
    }
    setvbuf(stdin, NULL, _IONBF, 0); /* buffered lines would be invisible to poll */
    check("cuInit", cuInit(0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuModuleLoadData", cuModuleLoadData(&module, spin_module));
    check("cuModuleGetFunction", cuModuleGetFunction(&function, module, SPIN_KERNEL));
    spin_set(&parameters, strtoull(arguments[1], NULL, 10) * 1000);
    check("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters.pointers, NULL));
    check("cuCtxSynchronize", cuCtxSynchronize());
    printf("ready\n");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        return EXIT_FAILURE;
    while (beats < MOST_BEATS && poll(&input, 1, 0) == 0) {
        check("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters.pointers, NULL));
        check("cuCtxSynchronize", cuCtxSynchronize());
        moments_us[beats++] = now_us();
    }
    for (unsigned i = 0; i < beats; i++)
        printf("%s%" PRId64, i > 0 ? " " : "", moments_us[i]);
    printf("\n");
    return EXIT_SUCCESS;
}
