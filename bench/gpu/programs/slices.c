/* Measures the driver's time slices: run it next to a busy process.
 *
 *   slices MILLISECONDS
 *
 * A kernel of one thread reads the GPU's clock during this time, and records gaps of more than 100 us between two
 * reads, when it was preempted. Prints "slices", the number of gaps, the medians of gaps and of the times between
 * them, and the longest gap, in milliseconds; or "not known here" on simulated GPUs, which do not execute kernels. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../launches/cuda_calls.h"

#define MOST_GAPS 256

static const char module_text[] =
    ".version 7.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry slices(.param .u64 written, .param .u64 nanoseconds)\n"
    "{\n"
    "    .reg .u64 %written, %place, %whole, %begun, %before, %now, %gap, %gaps;\n"
    "    .reg .pred %no;\n"
    "    ld.param.u64 %written, [written];\n"
    "    ld.param.u64 %whole, [nanoseconds];\n"
    "    cvta.to.global.u64 %written, %written;\n"
    "    add.u64 %place, %written, 8;\n"
    "    mov.u64 %gaps, 1;\n"
    "    mov.u64 %begun, %globaltimer;\n"
    "    mov.u64 %before, %begun;\n"
    "again:\n"
    "    mov.u64 %now, %globaltimer;\n"
    "    sub.u64 %gap, %now, %before;\n"
    "    setp.lt.u64 %no, %gap, 100000;\n"
    "    @%no bra next;\n"
    "    setp.gt.u64 %no, %gaps, 256;\n"
    "    @%no bra done;\n"
    "    st.global.u64 [%place], %before;\n"
    "    st.global.u64 [%place+8], %now;\n"
    "    add.u64 %place, %place, 16;\n"
    "    add.u64 %gaps, %gaps, 1;\n"
    "next:\n"
    "    mov.u64 %before, %now;\n"
    "    sub.u64 %gap, %now, %begun;\n"
    "    setp.lt.u64 %no, %gap, %whole;\n"
    "    @%no bra again;\n"
    "done:\n"
    "    st.global.u64 [%written], %gaps;\n" /* plus one, so that 0 means it has not run */
    "    ret;\n"
    "}\n";

typedef struct {
    uint64_t gaps;
    uint64_t moments[MOST_GAPS][2]; /* preempted, resumed */
} written_t;

extern int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
extern int cuMemsetD8_v2(unsigned long long pointer, unsigned char value, size_t count);
extern int cuMemcpyDtoH_v2(void *target, unsigned long long source, size_t bytes);

static int compare(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static void report(const written_t *written) {
    double gaps_ms[MOST_GAPS], runs_ms[MOST_GAPS];
    uint64_t count = written->gaps - 1, runs = 0;
    for (uint64_t i = 0; i < count; i++) {
        gaps_ms[i] = (double)(written->moments[i][1] - written->moments[i][0]) / 1e6;
        if (i > 0)
            runs_ms[runs++] = (double)(written->moments[i][0] - written->moments[i - 1][1]) / 1e6;
    }
    qsort(gaps_ms, count, sizeof *gaps_ms, compare);
    qsort(runs_ms, runs, sizeof *runs_ms, compare);
    printf("slices %d %.3f %.3f %.3f\n", (int)count, count > 0 ? gaps_ms[count / 2] : 0.0,
           runs > 0 ? runs_ms[runs / 2] : 0.0, count > 0 ? gaps_ms[count - 1] : 0.0);
}

int main(int count, char **arguments) {
    static written_t written;
    void *context, *module, *function;
    unsigned long long pointer;
    if (count != 2) {
        fprintf(stderr, "usage: slices MILLISECONDS\n");
        return 2;
    }
    uint64_t nanoseconds = strtoull(arguments[1], NULL, 10) * 1000000u;
    check("cuInit", cuInit(0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuModuleLoadData", cuModuleLoadData(&module, module_text));
    check("cuModuleGetFunction", cuModuleGetFunction(&function, module, "slices"));
    check("cuMemAlloc", cuMemAlloc_v2(&pointer, sizeof written));
    check("cuMemsetD8", cuMemsetD8_v2(pointer, 0, sizeof written));
    void *parameters[] = {&pointer, &nanoseconds};
    check("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    check("cuCtxSynchronize", cuCtxSynchronize());
    check("cuMemcpyDtoH", cuMemcpyDtoH_v2(&written, pointer, sizeof written));
    if (written.gaps == 0 || written.gaps > MOST_GAPS + 1)
        printf("not known here\n");
    else
        report(&written);
    return EXIT_SUCCESS;
}
