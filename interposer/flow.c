#define _GNU_SOURCE
#include "flow.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "capture.h"
#include "clock.h"
#include "contract.h"
#include "driver.h"
#include "gate.h"

#define BATCH_NS 2000000ull
#define BRIEF_BATCH_NS 500000ull
#define MOST_LAUNCHES 256u
#define FIRST_BATCH 2u
/* A kernel may wait for another one that has not been launched yet: nobody is held back for longer than this. Each time
 * in a row it is twice as long, or programs whose kernels are longer would run ahead after all. */
#define PATIENCE_NS 50000000ull
#define LONGEST_PATIENCE_NS 10000000000ull
#define SLEEP_NS 100000ull
#define UNKNOWN UINT64_MAX

typedef struct {
    bool busy; /* one thread at a time works on it */
    CUcontext context;
    CUevent events[2]; /* after the last batch, and the one before it */
    bool recorded[2];
    uint64_t marks[2]; /* launches that each comes after */
    uint64_t next;     /* launches at which the next batch begins */
    uint64_t batch;
    uint64_t done; /* launches that are known to have ended, and since when */
    uint64_t done_ns;
    uint64_t launch_ns; /* what one takes, at most */
    uint64_t patience_ns;
    uint32_t opened; /* which opening of the gate this is about */
} flow_t;

static flow_t flows[MAX_GPUS];

void flow_after_fork(void) {
    memset(flows, 0, sizeof flows);
}

static void take(flow_t *flow) {
    while (__atomic_exchange_n(&flow->busy, true, __ATOMIC_ACQUIRE))
        pause_ns(SLEEP_NS);
}

static void give(flow_t *flow) {
    __atomic_store_n(&flow->busy, false, __ATOMIC_RELEASE);
}

void flow_forget(CUcontext context) {
    for (unsigned i = 0; i < MAX_GPUS; i++) {
        flow_t *flow = &flows[i];
        if (__atomic_load_n(&flow->context, __ATOMIC_ACQUIRE) != context)
            continue;
        take(flow);
        if (flow->context == context)
            memset(&flow->context, 0, sizeof *flow - offsetof(flow_t, context));
        give(flow);
    }
}

/* The events belong to the context that launches now. Another one's are left to it. */
static bool prepare(flow_t *flow, uint32_t gpu) {
    CUcontext context = NULL;
    if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context == NULL)
        return false;
    if (flow->context == context)
        return true;
    for (unsigned i = 0; i < 2; i++) {
        if (flow->context != NULL && flow->events[i] != NULL)
            (void)REAL(cuEventDestroy_v2)(flow->events[i]);
    }
    memset(&flow->context, 0, sizeof *flow - offsetof(flow_t, context));
    for (unsigned i = 0; i < 2; i++) {
        if (REAL(cuEventCreate)(&flow->events[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            return false;
    }
    flow->batch = FIRST_BATCH;
    flow->launch_ns = UNKNOWN;
    flow->patience_ns = PATIENCE_NS;
    flow->opened = gate_opened(gpu) - 1;
    __atomic_store_n(&flow->context, context, __ATOMIC_RELEASE);
    return true;
}

static bool is_done(flow_t *flow, unsigned which) {
    return REAL(cuEventQuery)(flow->events[which]) != CUDA_ERROR_NOT_READY;
}

/* Whether a batch has ended; a gate that closes, and a long time, end the waiting. */
static bool wait_for(flow_t *flow, unsigned which, uint32_t gpu) {
    uint64_t until_ns = now_ns() + flow->patience_ns;
    while (!is_done(flow, which)) {
        if (!gate_is_open(gpu) || capture_any())
            return false;
        if (now_ns() > until_ns) {
            if (flow->patience_ns < LONGEST_PATIENCE_NS)
                flow->patience_ns *= 2;
            return false;
        }
        pause_ns(SLEEP_NS);
    }
    flow->patience_ns = PATIENCE_NS;
    return true;
}

/* What a launch takes, at most: by the time since the last batch was seen to have ended, for the launches since then.
 */
static void learn(flow_t *flow, uint64_t ended, bool brief) {
    uint64_t at_ns = now_ns();
    if (ended <= flow->done)
        return;
    uint64_t took_ns = (at_ns - flow->done_ns) / (ended - flow->done);
    /* A batch that was seen late makes the next one look short: less is believed by and by only. */
    bool more = flow->launch_ns == UNKNOWN || took_ns > flow->launch_ns;
    flow->launch_ns = more ? took_ns : (3 * flow->launch_ns + took_ns) / 4;
    flow->done = ended;
    flow->done_ns = at_ns;
    uint64_t batch_ns = brief ? BRIEF_BATCH_NS : BATCH_NS;
    uint64_t fitting = flow->launch_ns > 0 ? batch_ns / flow->launch_ns : MOST_LAUNCHES;
    uint64_t most = 2 * flow->batch < MOST_LAUNCHES ? 2 * flow->batch : MOST_LAUNCHES;
    flow->batch = fitting < 1 ? 1 : fitting < most ? fitting : most;
}

/* When the gate opens nothing is queued, and the time that it was closed is no launch's. */
static void begin(flow_t *flow, uint32_t opened, uint64_t launches) {
    flow->opened = opened;
    flow->recorded[0] = flow->recorded[1] = false;
    flow->done = launches - 1;
    flow->done_ns = now_ns();
}

static void next_batch(flow_t *flow, uint32_t gpu, CUstream stream, uint64_t launches) {
    if (!prepare(flow, gpu))
        return;
    uint32_t opened = gate_opened(gpu);
    if (flow->opened != opened)
        begin(flow, opened, launches);
    unsigned before = flow->marks[0] < flow->marks[1] ? 0 : 1;
    bool brief = gate_is_brief(gpu);
    unsigned awaited = brief && flow->recorded[!before] ? !before : before;
    if (flow->recorded[awaited] && wait_for(flow, awaited, gpu))
        learn(flow, flow->marks[awaited], brief);
    flow->recorded[before] = REAL(cuEventRecord)(flow->events[before], stream) == CUDA_SUCCESS;
    flow->marks[before] = launches - 1;
    __atomic_store_n(&flow->next, launches + flow->batch, __ATOMIC_RELEASE);
}

/* Another thread's capture may begin at any moment, and a question of this one's would break it if it were not relaxed.
 */
static void step(flow_t *flow, uint32_t gpu, CUstream stream, uint64_t launches) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
    next_batch(flow, gpu, stream, launches);
    if (exchanged)
        (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

void flow_launch(uint32_t gpu, CUstream stream, uint64_t launches) {
    flow_t *flow = &flows[gpu];
    bool same = __atomic_load_n(&flow->opened, __ATOMIC_ACQUIRE) == gate_opened(gpu);
    if ((same && launches < __atomic_load_n(&flow->next, __ATOMIC_ACQUIRE)) || capture_any())
        return;
    take(flow);
    if (launches >= flow->next || flow->opened != gate_opened(gpu))
        step(flow, gpu, stream, launches);
    give(flow);
}

uint64_t flow_left_ns(uint32_t gpu, uint64_t launches) {
    const flow_t *flow = &flows[gpu];
    uint64_t launch_ns = __atomic_load_n(&flow->launch_ns, __ATOMIC_RELAXED);
    uint64_t done = __atomic_load_n(&flow->done, __ATOMIC_RELAXED);
    if (launch_ns == UNKNOWN || flow->context == NULL || launches < done || launches - done > 4 * MOST_LAUNCHES)
        return UNKNOWN;
    uint64_t passed_ns = now_ns() - __atomic_load_n(&flow->done_ns, __ATOMIC_RELAXED);
    uint64_t took_ns = launch_ns * (launches - done);
    return took_ns > passed_ns ? took_ns - passed_ns : 0;
}
