#define _GNU_SOURCE
#include "compute/flow.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/clock.h"
#include "base/contract.h"
#include "base/fork.h"
#include "compute/gate.h"
#include "compute/passes.h"
#include "compute/streams.h"
#include "cuda/capture.h"
#include "driver/driver.h"

#define BATCH_NS 2000000ull
#define BRIEF_BATCH_NS 500000ull
#define MAX_BATCH 256u
#define FIRST_BATCH 2u
#define PASS_FRACTION 8 /* of a batch may be counted in advance */
#define SLEEP_NS 100000ull
#define UNKNOWN UINT64_MAX
/* A kernel may wait for another one that is not launched yet, which looks the same as a long kernel. So waiting
 * without progress uses up a credit: 1/32 of the time, up to this maximum. A program that launches in one queue only
 * is unlikely to have such kernels, but may have long ones. */
#define CREDIT_FRACTION 32
#define SINGLE_QUEUE_CREDIT_NS 10000000000ull
#define CREDIT_NS 50000000ull
#define MIN_CREDIT_NS BATCH_NS

/* Only the thread that holds `busy` changes the fields. Those that other threads read are atomic. Each is valid by
 * itself, now or a moment ago; only `open_count` and `next` also publish what was written before them. */
typedef struct {
    atomic_bool busy; /* a lock; other threads go on without it, because its holder may wait for their launches */
    bool concurrent;  /* work on this GPU may wait for other work of this process */
    _Atomic unsigned suspended; /* number of calls in progress that may end the context */
    uint64_t credit_ns;         /* time that may be spent waiting, as of `credit_at_ns` */
    uint64_t credit_at_ns;
    _Atomic(CUcontext) context; /* the fields below are about this context's work */
    CUevent events[2];          /* after the last two batches */
    bool recorded[2];
    uint64_t marks[2];     /* number of launches before each event */
    _Atomic uint64_t next; /* the launch that begins the next batch */
    _Atomic uint64_t batch;
    _Atomic uint64_t done; /* number of launches known to have ended, and when that was seen */
    _Atomic uint64_t done_ns;
    _Atomic uint64_t launch_ns;  /* upper estimate of a launch's duration */
    _Atomic uint32_t open_count; /* which opening of the gate this is about */
} flow_t;

static flow_t flows[MAX_GPUS];

static void flow_after_fork(void) {
    memset(flows, 0, sizeof flows);
}
FORK_ON_CHILD(flow_after_fork)

static bool try_lock_flow(flow_t *flow) {
    return !atomic_exchange_explicit(&flow->busy, true, memory_order_acquire);
}

static void lock_flow(flow_t *flow) {
    while (!try_lock_flow(flow))
        pause_ns(SLEEP_NS);
}

static void unlock_flow(flow_t *flow) {
    atomic_store_explicit(&flow->busy, false, memory_order_release);
}

/* Start over for another context, or for none. */
static void reset_flow(flow_t *flow, CUcontext context) {
    flow->recorded[0] = flow->recorded[1] = false;
    flow->marks[0] = flow->marks[1] = 0;
    atomic_store(&flow->next, 0);
    atomic_store(&flow->batch, FIRST_BATCH);
    atomic_store(&flow->done, 0);
    atomic_store(&flow->done_ns, 0);
    atomic_store(&flow->launch_ns, UNKNOWN);
    atomic_store(&flow->context, context);
}

/* A thread that holds the lock releases it within a moment. */
void flow_suspend(CUcontext context) {
    for (unsigned i = 0; i < MAX_GPUS; i++) {
        flow_t *flow = &flows[i];
        if (atomic_load(&flow->context) != context)
            continue;
        atomic_fetch_add(&flow->suspended, 1);
        lock_flow(flow);
        unlock_flow(flow);
    }
}

static void end_suspension(CUcontext context, bool ended) {
    for (unsigned i = 0; i < MAX_GPUS; i++) {
        flow_t *flow = &flows[i];
        if (atomic_load(&flow->context) != context)
            continue;
        lock_flow(flow);
        if (atomic_load(&flow->context) == context && ended) {
            flow->events[0] = flow->events[1] = NULL;
            reset_flow(flow, NULL);
        }
        if (atomic_load(&flow->suspended) > 0)
            atomic_fetch_sub(&flow->suspended, 1);
        unlock_flow(flow);
    }
}

void flow_drop(CUcontext context) {
    end_suspension(context, true);
}

void flow_resume(CUcontext context) {
    end_suspension(context, false);
}

/* Create the events in the launch's context, which is current. Events of the previous context are destroyed. */
static bool prepare(flow_t *flow, uint32_t gpu, CUcontext context) {
    CUcontext old = atomic_load(&flow->context);
    if (old == context)
        return true;
    flow->concurrent = flow->concurrent || old != NULL;
    reset_flow(flow, NULL);
    for (unsigned i = 0; i < 2; i++) {
        if (flow->events[i] != NULL)
            (void)REAL(cuEventDestroy_v2)(flow->events[i]);
        flow->events[i] = NULL;
    }
    for (unsigned i = 0; i < 2; i++) {
        if (REAL(cuEventCreate)(&flow->events[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            return false;
    }
    atomic_store(&flow->open_count, gate_open_count(gpu) - 1);
    reset_flow(flow, context);
    return true;
}

static bool is_done(flow_t *flow, unsigned which) {
    return REAL(cuEventQuery)(flow->events[which]) != CUDA_ERROR_NOT_READY;
}

static uint64_t min_u64(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

static uint64_t max_credit_ns(const flow_t *flow) {
    return flow->concurrent ? CREDIT_NS : SINGLE_QUEUE_CREDIT_NS;
}

/* Update and return the credit. */
static uint64_t credit_ns(flow_t *flow) {
    uint64_t at_ns = now_ns();
    uint64_t earned_ns =
        flow->credit_at_ns > 0 ? (at_ns - flow->credit_at_ns) / CREDIT_FRACTION : SINGLE_QUEUE_CREDIT_NS;
    flow->credit_ns = min_u64(flow->credit_ns + earned_ns, max_credit_ns(flow));
    flow->credit_at_ns = at_ns;
    return flow->credit_ns;
}

/* Return a batch's expected duration if it waits for nothing, with a margin. */
static uint64_t expected_ns(const flow_t *flow, unsigned which) {
    uint64_t launch_ns = atomic_load(&flow->launch_ns), done = atomic_load(&flow->done);
    if (launch_ns == UNKNOWN)
        return max_credit_ns(flow) / 4;
    uint64_t launches = flow->marks[which] > done ? flow->marks[which] - done : 1;
    return min_u64(MIN_CREDIT_NS + 3 * (launches * launch_ns) / 2, max_credit_ns(flow));
}

static bool may_wait(const flow_t *flow, uint32_t gpu) {
    return gate_is_open(gpu) && atomic_load(&flow->suspended) == 0;
}

/* Return whether a batch has ended. Waits for it if the credit covers its expected duration, until the gate closes
 * or the credit runs out. Time beyond the expected duration without progress is deducted from the credit. */
static bool wait_for(flow_t *flow, unsigned which, uint32_t gpu) {
    if (is_done(flow, which))
        return true;
    uint64_t max_wait_ns = credit_ns(flow), allowed_ns = expected_ns(flow, which), waited_ns = 0;
    bool waits = max_wait_ns >= allowed_ns;
    for (uint64_t since_ns = now_ns(); waits && waited_ns < max_wait_ns && may_wait(flow, gpu);
         waited_ns = now_ns() - since_ns) {
        pause_ns(SLEEP_NS);
        if (is_done(flow, which))
            return true;
    }
    if (waits && waited_ns > allowed_ns)
        flow->credit_ns -= min_u64(waited_ns, flow->credit_ns);
    return false;
}

/* Estimate a launch's duration from the time and the launches since the last batch that was seen to end. */
static void learn(flow_t *flow, uint64_t ended, bool brief) {
    uint64_t at_ns = now_ns(), done = atomic_load(&flow->done), old_ns = atomic_load(&flow->launch_ns);
    if (ended <= done)
        return;
    uint64_t took_ns = (at_ns - atomic_load(&flow->done_ns)) / (ended - done);
    /* After a batch that was seen late the next one looks short, so the estimate falls slowly. */
    bool more = old_ns == UNKNOWN || took_ns > old_ns;
    uint64_t launch_ns = more ? took_ns : (3 * old_ns + took_ns) / 4;
    atomic_store(&flow->launch_ns, launch_ns);
    atomic_store(&flow->done, ended);
    atomic_store(&flow->done_ns, at_ns);
    uint64_t batch_ns = brief ? BRIEF_BATCH_NS : BATCH_NS;
    uint64_t fitting = launch_ns > 0 ? batch_ns / launch_ns : MAX_BATCH;
    uint64_t max_batch = min_u64(2 * atomic_load(&flow->batch), MAX_BATCH);
    atomic_store(&flow->batch, fitting < 1 ? 1 : min_u64(fitting, max_batch));
}

/* Nothing is queued when the gate opens, and the time while it was closed does not count. */
static void restart(flow_t *flow, uint32_t open_count, uint64_t launches) {
    flow->recorded[0] = flow->recorded[1] = false;
    atomic_store(&flow->done, launches - 1);
    atomic_store(&flow->done_ns, now_ns());
    atomic_store(&flow->open_count, open_count);
}

/* Passes are revoked because launches that were counted but not made yet would come after the event. They are
 * counted again. */
static void begin_batch(flow_t *flow, uint32_t gpu, CUcontext context, CUstream stream, uint64_t launches) {
    if (!prepare(flow, gpu, context))
        return;
    uint32_t open_count = gate_open_count(gpu);
    if (atomic_load(&flow->open_count) != open_count)
        restart(flow, open_count, launches);
    unsigned before = flow->marks[0] < flow->marks[1] ? 0 : 1;
    bool brief = gate_is_brief(gpu);
    unsigned awaited = brief && flow->recorded[!before] ? !before : before;
    if (flow->recorded[awaited] && wait_for(flow, awaited, gpu))
        learn(flow, flow->marks[awaited], brief);
    passes_revoke();
    flow->recorded[before] = REAL(cuEventRecord)(flow->events[before], stream) == CUDA_SUCCESS;
    flow->marks[before] = launches - 1;
    atomic_store(&flow->next, launches + atomic_load(&flow->batch));
}

/* streams_count excludes default streams, which the program does not create. The per-thread one differs in each thread.
 */
static bool may_have_other_work(uint32_t gpu, CUstream stream) {
    return stream == CU_STREAM_PER_THREAD || streams_count(gpu) + (stream == CU_STREAM_LEGACY) > 1 || !gate_is_single();
}

static void step(flow_t *flow, uint32_t gpu, CUcontext context, CUstream stream, uint64_t launches) {
    CUcontext popped;
    flow->concurrent = flow->concurrent || may_have_other_work(gpu, stream);
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return;
    capture_mode_t relaxed = capture_relax();
    begin_batch(flow, gpu, context, stream, launches);
    capture_restore_mode(relaxed);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
}

unsigned flow_pass_size(uint32_t gpu, uint64_t launches) {
    flow_t *flow = &flows[gpu];
    uint64_t next = atomic_load(&flow->next), part = atomic_load(&flow->batch) / PASS_FRACTION;
    if (atomic_load(&flow->open_count) != gate_open_count(gpu) || next <= launches + 1 || part < 1)
        return 1;
    return (unsigned)min_u64(next - 1 - launches, part);
}

void flow_launch(uint32_t gpu, CUcontext context, CUstream stream, uint64_t launches) {
    flow_t *flow = &flows[gpu];
    bool same = atomic_load(&flow->open_count) == gate_open_count(gpu);
    if ((same && launches < atomic_load(&flow->next)) || !try_lock_flow(flow))
        return;
    bool due = launches >= atomic_load(&flow->next) || atomic_load(&flow->open_count) != gate_open_count(gpu);
    if (due && atomic_load(&flow->suspended) == 0)
        step(flow, gpu, context, stream, launches);
    unlock_flow(flow);
}

uint64_t flow_remaining_ns(uint32_t gpu, uint64_t launches) {
    flow_t *flow = &flows[gpu];
    uint64_t launch_ns = atomic_load(&flow->launch_ns), done = atomic_load(&flow->done);
    if (launch_ns == UNKNOWN || atomic_load(&flow->context) == NULL || launches < done ||
        launches - done > 4 * MAX_BATCH)
        return UNKNOWN;
    uint64_t passed_ns = now_ns() - atomic_load(&flow->done_ns);
    uint64_t took_ns = launch_ns * (launches - done);
    return took_ns > passed_ns ? took_ns - passed_ns : 0;
}
