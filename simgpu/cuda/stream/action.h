#ifndef SIMGPU_CUDA_ACTION_H
#define SIMGPU_CUDA_ACTION_H

#include "cuda/abi/abi.h"
#include "time/timeline.h"

/* cuda_order.c: something else in the order of a stream. When the stream has come to it, `act` is asked again and again
 * until it says that it is done, and then the stream goes on. Who asks is a thread of the driver: one for what GPUs do
 * by themselves, where nothing may take long, and one for functions of the program. `argument` is freed after the end,
 * and if it fails. */
typedef enum { ACTOR_GPU, ACTOR_HOST } actor_t;
typedef bool (*stream_action_t)(void *argument);
CUresult stream_enqueue(CUcontext context, CUstream stream, bool per_thread, actor_t actor, stream_action_t act,
                        void *argument);
/* The same, for a kernel that keeps its part of the GPU until then, and does its work afterwards. */
CUresult stream_enqueue_work(CUcontext context, CUstream stream, bool per_thread, gpu_work_t kernel, actor_t actor,
                             stream_action_t act, void *argument);

/* Whether any stream of the process has any of that in it. If not, the order of what takes no time does not matter. */
bool stream_actions_pending(void);

#endif
