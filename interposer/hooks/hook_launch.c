/* Called by the assembly of every function that starts work on the GPU, unless the gate is wide open. */
#include <string.h>

#include "compute/launch.h"
#include "compute/passes.h"
#include "hooks/registers.h"
#include "session/join.h"

/* Offset of hStream in CUlaunchConfig: after seven 32-bit numbers. */
#define CONFIG_STREAM_OFFSET 32

/* A result other than CUDA_SUCCESS is the launch's result. `where` is a constant of registers.h. `stack` points to
 * the first parameter that is not in a register. */
CUresult hook_launch(const uint64_t registers[LAUNCH_REGISTERS], const uint64_t *stack, unsigned where);

static CUstream stream_of(const uint64_t registers[LAUNCH_REGISTERS], const uint64_t *stack, unsigned where) {
    CUstream stream = NULL;
    unsigned place = where & ~(unsigned)LAUNCH_PER_THREAD;
    if (place == LAUNCH_CONFIG && registers[0] != 0)
        memcpy(&stream, (const char *)(uintptr_t)registers[0] + CONFIG_STREAM_OFFSET, sizeof stream);
    else if (place == LAUNCH_STREAM_2 || place == LAUNCH_STREAM_4)
        stream = (CUstream)(uintptr_t)registers[place - 1];
    else if (place == LAUNCH_STREAM_9)
        stream = (CUstream)(uintptr_t)stack[LAUNCH_STREAM_9 - 1 - LAUNCH_REGISTERS];
    if (stream == NULL)
        stream = where & LAUNCH_PER_THREAD ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    return stream;
}

/* Not inlined, so that launches with a pass do not pay for it. */
static __attribute__((noinline)) CUresult admit(CUstream stream, bool multi_device) {
    return session_join() ? launch_admit(stream, multi_device) : CUDA_ERROR_SYSTEM_NOT_READY;
}

CUresult hook_launch(const uint64_t registers[LAUNCH_REGISTERS], const uint64_t *stack, unsigned where) {
    CUstream stream = stream_of(registers, stack, where);
    if (where != LAUNCH_SEVERAL && passes_use(stream))
        return CUDA_SUCCESS;
    return admit(stream, where == LAUNCH_SEVERAL);
}
