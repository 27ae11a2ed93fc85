/* The gate: where launches wait until the container has the lease of their GPU.
 *
 * gate_word is what every launch looks at. It is WIDE_OPEN when all GPUs that this process uses may be used freely, and
 * then nothing more is done; otherwise a launch comes to gate_pass, which looks at the gate of its own GPU. Only the
 * helper thread opens and closes gates; other threads only ever take WIDE_OPEN back.
 *
 * A launch that has passed when the gate closes is still on its way to the driver: one a thread, which is not waited
 * for. It counts as work of the next lease. */
#ifndef GPUSHARE_GATE_H
#define GPUSHARE_GATE_H

#include <stdbool.h>

#include "hooks.h"
#include "launch.h"

#define GATE_WIDE_OPEN 1u
extern uint32_t gate_word;

/* From the assembly of each launching function. What is not SUCCESS is the launch's result. `stream` is one of
 * launch.h; `stack` begins with the first parameter that is in none of the registers. */
CUresult gate_pass(const uint64_t registers[LAUNCH_REGISTERS], const uint64_t *stack, unsigned stream);

/* There is a context on this device. */
void gate_context(CUcontext context, CUdevice device);

/* There may be work on this device, of a context that is not known. */
void gate_device(CUdevice device);

/* For the helper thread: `counted`: every launch is to come to gate_pass, to be counted and kept from running ahead;
 * `brief`: still less far, for somebody may have to be served at once. */
void gate_open(uint32_t gpu, bool counted, bool brief);
void gate_close(uint32_t gpu);
bool gate_is_open(uint32_t gpu);
bool gate_is_brief(uint32_t gpu);
bool gate_is_only(void);            /* this process uses one GPU */
uint32_t gate_opened(uint32_t gpu); /* how often */
bool gate_is_waited_for(uint32_t gpu);
/* How many launches have come by. It counts before it looks at the gate: if it has not changed after a close, nothing
 * has slipped through. */
uint64_t gate_launches(uint32_t gpu);
uint64_t gate_passed(uint32_t gpu); /* without those that wait */

#endif
