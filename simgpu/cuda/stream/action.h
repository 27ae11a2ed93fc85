#ifndef SIMGPU_CUDA_ACTION_H
#define SIMGPU_CUDA_ACTION_H

#include "cuda/abi/abi.h"
#include "time/timeline.h"

/* Queue an action in a stream. When the stream reaches it, a thread of the driver calls `act` until it returns true;
 * then the stream continues. One thread runs what GPUs do, where no action may take long; another one runs functions
 * of the program. `argument` is freed after the end, and on failure. */
typedef enum { ACTOR_GPU, ACTOR_HOST } actor_t;
typedef bool (*stream_action_t)(void *argument);
CUresult stream_enqueue(CUcontext context, CUstream stream, bool per_thread, actor_t actor, stream_action_t act,
                        void *argument);
/* The same for a kernel that occupies its part of the GPU until the action is done, and runs afterwards. */
CUresult stream_enqueue_work(CUcontext context, CUstream stream, bool per_thread, gpu_work_t kernel, actor_t actor,
                             stream_action_t act, void *argument);

/* Whether any stream of the process has actions. If not, instantaneous work can be done out of order. */
bool stream_actions_pending(void);

#endif
