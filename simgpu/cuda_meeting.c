/* Kernels that wait for each other: each begins, keeps its part of its GPU busy until as many of its kind have begun,
 * and only then does its work, as the kernels of collectives do. Those with a key meet where all of the node meet,
 * whosever they are; those without one are a kind of their process. */
#include <stdlib.h>

#include "cuda_driver.h"
#include "rendezvous.h"

typedef struct {
    rendezvous_t *page;
    uint64_t key;
    unsigned size;
    bool arrived;
    rendezvous_place_t place;
} meeting_t;

static bool meet(void *argument) {
    meeting_t *meeting = argument;
    if (!meeting->arrived)
        meeting->arrived = rendezvous_arrive(meeting->page, meeting->key, meeting->size, &meeting->place);
    return meeting->arrived && rendezvous_has_met(&meeting->place);
}

CUresult meeting_launch(CUcontext context, CUstream stream, bool per_thread, const kernel_t *kernel) {
    rendezvous_t *page = kernel->key != 0 ? rendezvous_open() : rendezvous_own();
    if (page == NULL)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    meeting_t *meeting = malloc(sizeof *meeting);
    if (meeting == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *meeting =
        (meeting_t){.page = page, .key = kernel->key != 0 ? kernel->key : kernel->meeting, .size = kernel->meeting};
    const gpu_work_t work = {.duration_ns = kernel->duration_ns, .percent = kernel->percent};
    return stream_enqueue_work(context, stream, per_thread, work, ACTOR_GPU, meet, meeting);
}
