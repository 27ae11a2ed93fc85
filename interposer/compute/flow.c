#define _GNU_SOURCE
#include "compute/flow.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/contract.h"
#include "base/fork.h"
#include "compute/gate.h"
#include "compute/streams.h"
#include "driver/driver.h"

#define BATCH_NS 2000000ull
#define BRIEF_BATCH_NS 500000ull
#define MOST_LAUNCHES 256u
#define FIRST_BATCH 2u
#define SLEEP_NS 100000ull
#define UNKNOWN UINT64_MAX
/* A kernel may wait for another one that has not been launched yet. Nobody can tell from one that takes its time, so
 * there is a credit for waiting in vain: a thirty-second part of the time, and no more at once than this. A program
 * whose work is in one queue can hardly have such kernels, and may have long ones. */
#define CREDIT_PART 32
#define ALONE_CREDIT_NS 10000000000ull
#define CREDIT_NS 50000000ull
#define LEAST_CREDIT_NS BATCH_NS

typedef struct {
    bool busy;          /* a thread works on it; others pass by, for what it waits for may be theirs to launch */
    bool several;       /* work of this GPU may wait for other work of this process */
    unsigned aside;     /* its context may be ending, and so many threads are about to say whether it has */
    uint64_t credit_ns; /* so long may be waited in vain, as of then */
    uint64_t credit_at_ns;
    CUcontext context; /* what follows is about its work */
    CUevent events[2]; /* after the last batch, and the one before it */
    bool recorded[2];
    uint64_t marks[2]; /* launches that each comes after */
    uint64_t next;     /* launches at which the next batch begins */
    uint64_t batch;
    uint64_t done; /* launches that are known to have ended, and since when */
    uint64_t done_ns;
    uint64_t launch_ns; /* what one takes, at most */
    uint32_t opened;    /* which opening of the gate this is about */
} flow_t;

static flow_t flows[MAX_GPUS];

static void flow_after_fork(void) {
    memset(flows, 0, sizeof flows);
}
FORK_ON_CHILD(flow_after_fork)

static bool try_take(flow_t *flow) {
    return !__atomic_exchange_n(&flow->busy, true, __ATOMIC_ACQUIRE);
}

static void take(flow_t *flow) {
    while (!try_take(flow))
        pause_ns(SLEEP_NS);
}

static void give(flow_t *flow) {
    __atomic_store_n(&flow->busy, false, __ATOMIC_RELEASE);
}

/* Those who are at it leave within a moment. */
void flow_set_aside(CUcontext context) {
    for (unsigned i = 0; i < MAX_GPUS; i++) {
        flow_t *flow = &flows[i];
        if (__atomic_load_n(&flow->context, __ATOMIC_ACQUIRE) != context)
            continue;
        __atomic_add_fetch(&flow->aside, 1, __ATOMIC_SEQ_CST);
        take(flow);
        give(flow);
    }
}

static void come_back(CUcontext context, bool ended) {
    for (unsigned i = 0; i < MAX_GPUS; i++) {
        flow_t *flow = &flows[i];
        if (__atomic_load_n(&flow->context, __ATOMIC_ACQUIRE) != context)
            continue;
        take(flow);
        if (flow->context == context && ended)
            memset(&flow->context, 0, sizeof *flow - offsetof(flow_t, context));
        if (flow->aside > 0)
            __atomic_sub_fetch(&flow->aside, 1, __ATOMIC_SEQ_CST);
        give(flow);
    }
}

void flow_drop(CUcontext context) {
    come_back(context, true);
}

void flow_restore(CUcontext context) {
    come_back(context, false);
}

/* The events belong to the context that launches now. Another one's are left to it. */
static bool prepare(flow_t *flow, uint32_t gpu) {
    CUcontext context = NULL;
    if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context == NULL)
        return false;
    if (flow->context == context)
        return true;
    flow->several = flow->several || flow->context != NULL;
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
    flow->opened = gate_opened(gpu) - 1;
    __atomic_store_n(&flow->context, context, __ATOMIC_RELEASE);
    return true;
}

static bool is_done(flow_t *flow, unsigned which) {
    return REAL(cuEventQuery)(flow->events[which]) != CUDA_ERROR_NOT_READY;
}

static uint64_t least(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

static uint64_t most_credit_ns(const flow_t *flow) {
    return flow->several ? CREDIT_NS : ALONE_CREDIT_NS;
}

/* How long may be waited now. */
static uint64_t credit_ns(flow_t *flow) {
    uint64_t at_ns = now_ns();
    uint64_t earned_ns = flow->credit_at_ns > 0 ? (at_ns - flow->credit_at_ns) / CREDIT_PART : ALONE_CREDIT_NS;
    flow->credit_ns = least(flow->credit_ns + earned_ns, most_credit_ns(flow));
    flow->credit_at_ns = at_ns;
    return flow->credit_ns;
}

/* How long a batch takes that waits for nothing, with room for one that takes longer than others. */
static uint64_t expected_ns(const flow_t *flow, unsigned which) {
    if (flow->launch_ns == UNKNOWN)
        return most_credit_ns(flow) / 4;
    uint64_t launches = flow->marks[which] > flow->done ? flow->marks[which] - flow->done : 1;
    return least(LEAST_CREDIT_NS + 3 * (launches * flow->launch_ns) / 2, most_credit_ns(flow));
}

static bool may_wait(const flow_t *flow, uint32_t gpu) {
    return gate_is_open(gpu) && __atomic_load_n(&flow->aside, __ATOMIC_SEQ_CST) == 0;
}

/* Whether a batch has ended. It is waited for if there is credit for as long as it is to take; a gate that closes, and
 * the end of the credit, end the waiting. What was waited for nothing is paid for. */
static bool wait_for(flow_t *flow, unsigned which, uint32_t gpu) {
    if (is_done(flow, which))
        return true;
    uint64_t longest_ns = credit_ns(flow), fair_ns = expected_ns(flow, which), waited_ns = 0;
    bool waits = longest_ns >= fair_ns;
    for (uint64_t since_ns = now_ns(); waits && waited_ns < longest_ns && may_wait(flow, gpu);
         waited_ns = now_ns() - since_ns) {
        pause_ns(SLEEP_NS);
        if (is_done(flow, which))
            return true;
    }
    if (waits && waited_ns > fair_ns)
        flow->credit_ns -= least(waited_ns, flow->credit_ns);
    return false;
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
    uint64_t launch_ns = more ? took_ns : (3 * flow->launch_ns + took_ns) / 4;
    __atomic_store_n(&flow->launch_ns, launch_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&flow->done, ended, __ATOMIC_RELAXED);
    __atomic_store_n(&flow->done_ns, at_ns, __ATOMIC_RELAXED);
    uint64_t batch_ns = brief ? BRIEF_BATCH_NS : BATCH_NS;
    uint64_t fitting = launch_ns > 0 ? batch_ns / launch_ns : MOST_LAUNCHES;
    uint64_t most = 2 * flow->batch < MOST_LAUNCHES ? 2 * flow->batch : MOST_LAUNCHES;
    flow->batch = fitting < 1 ? 1 : fitting < most ? fitting : most;
}

/* When the gate opens nothing is queued, and the time that it was closed is no launch's. */
static void begin(flow_t *flow, uint32_t opened, uint64_t launches) {
    flow->recorded[0] = flow->recorded[1] = false;
    __atomic_store_n(&flow->done, launches - 1, __ATOMIC_RELAXED);
    __atomic_store_n(&flow->done_ns, now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&flow->opened, opened, __ATOMIC_RELEASE);
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

/* Default streams are made by nobody; a thread's own is another one in each thread. */
static bool is_one_of_several(uint32_t gpu, CUstream stream) {
    return stream == CU_STREAM_PER_THREAD || streams_count(gpu) + (stream == CU_STREAM_LEGACY) > 1 || !gate_is_only();
}

/* Another thread's capture may begin at any moment, and a question of this one's would break it if it were not relaxed.
 */
static void step(flow_t *flow, uint32_t gpu, CUstream stream, uint64_t launches) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    flow->several = flow->several || is_one_of_several(gpu, stream);
    bool exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
    next_batch(flow, gpu, stream, launches);
    if (exchanged)
        (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

void flow_launch(uint32_t gpu, CUstream stream, uint64_t launches) {
    flow_t *flow = &flows[gpu];
    bool same = __atomic_load_n(&flow->opened, __ATOMIC_ACQUIRE) == gate_opened(gpu);
    if ((same && launches < __atomic_load_n(&flow->next, __ATOMIC_ACQUIRE)) || !try_take(flow))
        return;
    bool due = launches >= flow->next || flow->opened != gate_opened(gpu);
    if (due && __atomic_load_n(&flow->aside, __ATOMIC_SEQ_CST) == 0)
        step(flow, gpu, stream, launches);
    give(flow);
}

uint64_t flow_left_ns(uint32_t gpu, uint64_t launches) {
    const flow_t *flow = &flows[gpu];
    uint64_t launch_ns = __atomic_load_n(&flow->launch_ns, __ATOMIC_RELAXED);
    uint64_t done = __atomic_load_n(&flow->done, __ATOMIC_RELAXED);
    if (launch_ns == UNKNOWN || __atomic_load_n(&flow->context, __ATOMIC_RELAXED) == NULL || launches < done ||
        launches - done > 4 * MOST_LAUNCHES)
        return UNKNOWN;
    uint64_t passed_ns = now_ns() - __atomic_load_n(&flow->done_ns, __ATOMIC_RELAXED);
    uint64_t took_ns = launch_ns * (launches - done);
    return took_ns > passed_ns ? took_ns - passed_ns : 0;
}
