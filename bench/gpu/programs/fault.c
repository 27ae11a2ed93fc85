/* A tenant whose kernel faults at a known moment.
 *
 *   fault illegal|trap|assert
 *
 * Prints "ready" after a good kernel and waits for a line. Then it launches a kernel that writes to an unmapped
 * address, traps, or fails an assertion, and prints "failed", the driver's error (0: none) and the milliseconds
 * until the error. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../launches/cuda_calls.h"

#define PREFIX "fault_" /* simulated GPUs recognise it by name */

static const char module_text[] =
    ".version 7.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".extern .func __assertfail(.param .b64 message, .param .b64 file, .param .b32 line,\n"
    "                           .param .b64 function, .param .b64 size);\n"
    ".global .align 1 .b8 text[7] = {119, 97, 110, 116, 101, 100, 0};\n"
    ".visible .entry good()\n"
    "{\n"
    "    ret;\n"
    "}\n"
    ".visible .entry " PREFIX "illegal()\n"
    "{\n"
    "    .reg .u64 %nowhere;\n"
    "    mov.u64 %nowhere, 8;\n"
    "    st.global.u64 [%nowhere], %nowhere;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry " PREFIX "trap()\n"
    "{\n"
    "    trap;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry " PREFIX "assert()\n"
    "{\n"
    "    .reg .b64 %what;\n"
    "    .reg .b64 %size;\n"
    "    .reg .b32 %line;\n"
    "    .param .b64 message;\n"
    "    .param .b64 file;\n"
    "    .param .b32 line;\n"
    "    .param .b64 function;\n"
    "    .param .b64 size;\n"
    "    mov.u64 %what, text;\n"
    "    cvta.global.u64 %what, %what;\n"
    "    mov.u64 %size, 1;\n"
    "    mov.u32 %line, 1;\n"
    "    st.param.b64 [message], %what;\n"
    "    st.param.b64 [file], %what;\n"
    "    st.param.b32 [line], %line;\n"
    "    st.param.b64 [function], %what;\n"
    "    st.param.b64 [size], %size;\n"
    "    call.uni __assertfail, (message, file, line, function, size);\n"
    "    ret;\n"
    "}\n";

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int launch(void *function) {
    int result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return result != 0 ? result : cuCtxSynchronize();
}

int main(int count, char **arguments) {
    void *context, *module, *good, *faulty;
    char name[64];
    if (count != 2) {
        fprintf(stderr, "usage: fault illegal|trap|assert\n");
        return 2;
    }
    snprintf(name, sizeof name, PREFIX "%s", arguments[1]);
    check("cuInit", cuInit(0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuModuleLoadData", cuModuleLoadData(&module, module_text));
    check("cuModuleGetFunction", cuModuleGetFunction(&good, module, "good"));
    check(name, cuModuleGetFunction(&faulty, module, name));
    check("cuLaunchKernel", launch(good));
    printf("ready\n");
    fflush(stdout);
    (void)getchar();
    double begun = now_ms();
    int result = launch(faulty);
    printf("failed %d %.3f\n", result, now_ms() - begun);
    return EXIT_SUCCESS;
}
