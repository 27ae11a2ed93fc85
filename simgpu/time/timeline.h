/* When kernels run on a GPU. The work of each process is a queue that all processes see. channels.h defines the
 * order in it, schedule.h which process has the GPU.
 *
 * There is no scheduler process: when a kernel ends depends on later launches, so it cannot be computed in advance.
 * Any process that needs to know advances the GPU's state to the present, by CLOCK_MONOTONIC, under a lock that a
 * killed process cannot keep. If a process is killed while it does so, another one loses at most a time slice. The
 * queued work of a killed process is dropped when the next process looks, within a millisecond. If it was an MPS
 * client, that may wedge its server: then no work of the server's clients ends. */
#ifndef SIMGPU_TIMELINE_H
#define SIMGPU_TIMELINE_H

#include "image/gpus.h"
#include "state/servers.h"
#include "time/channels.h"

/* Work for the GPU. `held`: it begins, occupies its part of the GPU, and finishes only after its release. A percent
 * of 0: it needs no part of the GPU, only its place in the stream. */
typedef struct {
    uint64_t duration_ns;
    unsigned percent;
    bool held;
    bool faults;    /* it ends with a fault, which ends an MPS client and those that share its fate: see schedule.h */
    uint64_t after; /* a mark on the same GPU, of this process, that must be reached first; 0: none */
    unsigned context;
    order_t order;
} gpu_work_t;

/* Queue work of this process, which has a slot, after the stream's end mark, as soon as there is room. Moves the
 * stream's mark to the end of the work and returns it. */
uint64_t timeline_queue(gpu_t *gpu, _Atomic uint64_t *stream, const gpu_work_t *work);

/* Whether held work has begun; only then may it be released. If not, `again_ns_p` is when to ask again. */
bool timeline_has_begun(gpu_t *gpu, uint64_t mark, uint64_t *again_ns_p);
void timeline_release(gpu_t *gpu, uint64_t mark);

/* Whether a mark of this process's queue has been reached. */
bool timeline_reached(gpu_t *gpu, uint64_t mark);
/* When the mark was reached. Only the last 4,096 launches are remembered. */
uint64_t timeline_ended_ns(gpu_t *gpu, uint64_t mark);
void timeline_wait(gpu_t *gpu, uint64_t mark);

/* Drop the queued work of this process, which exits in an orderly manner. */
void timeline_drop(gpu_t *gpu);

/* For control daemons of MPS: end a client and drop its work; drop the work of killed processes now. */
void timeline_end_client(gpu_t *gpu, unsigned slot, ended_t why);
void timeline_sweep(gpu_t *gpu);

#endif
