/* A kernel that keeps a real or simulated GPU busy for a given time.
 *
 * It counts loops and does not read the clock, because the clock goes on while another process has the GPU. "load
 * calibrate" measures the loops a nanosecond; SPIN_LOOPS in the environment passes them on, as loops in 2^20
 * nanoseconds. A simulated GPU only uses the nanoseconds. */
#ifndef BENCH_SPIN_H
#define BENCH_SPIN_H

#include <stdint.h>
#include <stdlib.h>

#define SPIN_KERNEL "work_ns"
#define SPIN_LOOPS_GUESS 90000

static const char spin_module[] = ".version 7.0\n"
                                  ".target sm_50\n"
                                  ".address_size 64\n"
                                  ".visible .global .align 8 .u64 result;\n"
                                  ".visible .entry " SPIN_KERNEL "(.param .u64 nanoseconds, .param .u64 loops)\n"
                                  "{\n"
                                  "    .reg .u64 %turns, %loops, %turn, %value, %place;\n"
                                  "    .reg .pred %over;\n"
                                  "    ld.param.u64 %turns, [nanoseconds];\n"
                                  "    ld.param.u64 %loops, [loops];\n"
                                  "    mul.lo.u64 %turns, %turns, %loops;\n"
                                  "    shr.u64 %turns, %turns, 20;\n"
                                  "    mov.u64 %turn, 0;\n"
                                  "    mov.u64 %value, %clock64;\n"
                                  "again:\n"
                                  "    setp.ge.u64 %over, %turn, %turns;\n"
                                  "    @%over bra done;\n"
                                  "    mad.lo.u64 %value, %value, 6364136223846793005, 1442695040888963407;\n"
                                  "    add.u64 %turn, %turn, 1;\n"
                                  "    bra again;\n"
                                  "done:\n"
                                  "    mov.u64 %place, result;\n"
                                  "    st.global.u64 [%place], %value;\n"
                                  "    ret;\n"
                                  "}\n";

typedef struct {
    uint64_t nanoseconds, loops;
    void *pointers[3]; /* the parameters of a launch */
} spin_parameters_t;

static inline void spin_set(spin_parameters_t *parameters, uint64_t nanoseconds) {
    const char *loops = getenv("SPIN_LOOPS");
    parameters->nanoseconds = nanoseconds;
    parameters->loops = loops != NULL ? strtoull(loops, NULL, 10) : SPIN_LOOPS_GUESS;
    parameters->pointers[0] = &parameters->nanoseconds;
    parameters->pointers[1] = &parameters->loops;
    parameters->pointers[2] = NULL;
}

#endif
