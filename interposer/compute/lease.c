#define _GNU_SOURCE
#include "compute/lease.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "compute/flow.h"
#include "compute/gate.h"
#include "compute/marker.h"
#include "driver/driver.h"
#include "link/arbiter.h"
#include "share/share.h"

#define DRAIN_POLL_NS (MS_NS / 10)
#define CONTENDED_POLL_NS (MS_NS / 2)
#define MAX_IDLE_POLLS 1 /* number of idle polls before a lease is returned */
#define COUNTED_POLL_NS (100 * MS_NS)
/* The rest of the work will end about when the next share can begin. If CLOSED were sent much earlier, both would
 * run until then, and only one of them pays for that. */
#define HANDOVER_NS (MS_NS / 2)
#define MAX_DRAIN_NS (100 * MS_NS)
#define PERIOD_NS (100 * MS_NS) /* for shares that take turns without an arbiter */

typedef struct {
    uint64_t lease;
    uint64_t released; /* the last lease returned: a late OPEN of it is ignored */
    uint32_t flags;
    bool requested;      /* WANT was sent */
    bool draining;       /* the gate is closed, and earlier work may still run */
    bool close_pending;  /* CLOSED has not been sent */
    unsigned idle_polls; /* polls without a launch */
    uint64_t opened_ns;
    uint64_t marked_ns; /* when pending work was last marked */
    uint64_t launches;
} lease_t;

static lease_t leases[MAX_GPUS];
static bool relaxed; /* see relax_capture_mode */

static void lease_after_fork(void) {
    memset(leases, 0, sizeof leases);
    relaxed = false;
}
FORK_ON_CHILD(lease_after_fork)

static bool release_lease(uint32_t gpu) {
    lease_t *lease = &leases[gpu];
    if (!arbiter_send(MESSAGE_RELEASED, gpu, 0, lease->lease))
        return false;
    lease->released = lease->lease;
    return true;
}

/* Keeps this thread's queries from breaking other threads' captures. Not done at the thread's start, because CUDA
 * may not be initialized then. */
static void relax_capture_mode(void) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    relaxed = relaxed || REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
}

static void open_gate(uint32_t gpu, uint32_t flags) {
    lease_t *lease = &leases[gpu];
    relax_capture_mode();
    lease->flags = flags;
    lease->draining = false;
    lease->idle_polls = 0;
    lease->opened_ns = now_ns();
    gate_open(gpu, (flags & (LEASE_COUNTED | LEASE_CONTENDED)) != 0, (flags & LEASE_BRIEF) != 0);
}

static void mark(uint32_t gpu) {
    leases[gpu].marked_ns = now_ns();
    marker_record(gpu);
}

static void close_gate(uint32_t gpu) {
    gate_close(gpu);
    mark(gpu);
    leases[gpu].draining = true;
}

/* Whether no work runs any more. Where the driver cannot tell, the estimate for counted launches decides; others get
 * as much time again as they have had. */
static bool has_ended(uint32_t gpu) {
    const lease_t *lease = &leases[gpu];
    if (!marker_is_done(gpu))
        return false;
    if (!marker_has_missed(gpu))
        return true;
    uint64_t remaining_ns = lease->flags & LEASE_COUNTED ? flow_remaining_ns(gpu, gate_passed(gpu)) : UINT64_MAX;
    uint64_t ran_ns = lease->marked_ns - lease->opened_ns;
    uint64_t wait_ns = ran_ns < MAX_DRAIN_NS ? ran_ns : MAX_DRAIN_NS;
    return remaining_ns != UINT64_MAX ? remaining_ns == 0 : now_ns() - lease->marked_ns >= wait_ns;
}

/* The next share is allowed to begin while the last work ends. */
static uint64_t drain(uint32_t gpu) {
    lease_t *lease = &leases[gpu];
    if (has_ended(gpu)) {
        lease->draining = !release_lease(gpu);
        return DRAIN_POLL_NS;
    }
    uint64_t remaining_ns = flow_remaining_ns(gpu, gate_passed(gpu));
    if (lease->close_pending && remaining_ns <= HANDOVER_NS)
        lease->close_pending = !arbiter_send(MESSAGE_CLOSED, gpu, 0, lease->lease);
    bool known = lease->close_pending && remaining_ns != UINT64_MAX;
    uint64_t poll_ns = known && remaining_ns > HANDOVER_NS ? remaining_ns - HANDOVER_NS : DRAIN_POLL_NS;
    return poll_ns < CONTENDED_POLL_NS ? poll_ns : CONTENDED_POLL_NS;
}

/* Each grant of a lease has a new number. */
void lease_open(uint32_t gpu, uint32_t flags, uint64_t number) {
    lease_t *lease = &leases[gpu];
    if (number == lease->released)
        return;
    lease->lease = number;
    lease->requested = false;
    open_gate(gpu, flags);
}

void lease_revoke(uint32_t gpu, uint64_t number) {
    lease_t *lease = &leases[gpu];
    bool any = number == 0;
    if (!gate_is_open(gpu) || !(any || number == lease->lease)) {
        if (any || (number == lease->lease && !lease->draining))
            (void)arbiter_send(MESSAGE_RELEASED, gpu, 0, number);
        return;
    }
    if (any)
        lease->lease = 0;
    close_gate(gpu);
    lease->close_pending = true;
    drain(gpu);
}

/* Return the lease if the GPU is idle while other shares wait or a limit applies. If a launch comes in between, the
 * gate opens again. */
static void release_if_idle(uint32_t gpu) {
    lease_t *lease = &leases[gpu];
    uint64_t launches = gate_launches(gpu);
    if (launches != lease->launches || gate_has_waiters(gpu)) {
        lease->launches = launches;
        lease->idle_polls = 0;
        return;
    }
    if (lease->idle_polls == 0)
        mark(gpu);
    if (!has_ended(gpu))
        return;
    /* A program that waits for each launch may be about to make the next one. */
    if (lease->idle_polls++ < MAX_IDLE_POLLS)
        return;
    gate_close(gpu);
    if (gate_launches(gpu) != launches || !release_lease(gpu))
        open_gate(gpu, lease->flags);
}

/* Without an arbiter each share launches in its own part of every PERIOD_NS, given by the limits page. If an older
 * arbiter left that empty, the share takes its requested part, from an offset derived from the process ID. In many
 * pods that ID is the same, so these parts may overlap. */
static bool is_turn(uint32_t gpu) {
    uint64_t begin_ns, length_ns;
    if (share_turn(gpu, PERIOD_NS, &begin_ns, &length_ns))
        return (now_ns() + PERIOD_NS - begin_ns % PERIOD_NS) % PERIOD_NS < length_ns;
    unsigned percent = share_request_percent(gpu);
    return (now_ns() + (uint64_t)getpid() * 37 * MS_NS) % PERIOD_NS < (percent > 0 ? percent : 1) * (PERIOD_NS / 100);
}

/* Without an arbiter, shares with neighbours take turns by the clock. Those that never need leases launch freely. */
static void share_by_clock(uint32_t gpu) {
    lease_t *lease = &leases[gpu];
    if (share_isolation()->isolation != ISOLATION_ARBITER) {
        if (!gate_is_open(gpu) && gate_has_waiters(gpu))
            open_gate(gpu, 0);
        return;
    }
    bool turn = is_turn(gpu);
    if (turn && !gate_is_open(gpu) && gate_has_waiters(gpu))
        open_gate(gpu, LEASE_COUNTED);
    else if (!turn && gate_is_open(gpu) && lease->flags != 0)
        gate_close(gpu);
}

uint64_t lease_poll(uint32_t gpu) {
    lease_t *lease = &leases[gpu];
    if (!arbiter_is_connected()) {
        share_by_clock(gpu);
        return gate_is_open(gpu) ? (lease->flags != 0 ? MS_NS : FOREVER) : gate_has_waiters(gpu) ? MS_NS : FOREVER;
    }
    uint64_t drain_ns = lease->draining ? drain(gpu) : 0;
    bool is_open = gate_is_open(gpu);
    if (!is_open && !lease->requested && gate_has_waiters(gpu))
        lease->requested = arbiter_send(MESSAGE_WANT, gpu, 0, 0);
    if (is_open && lease->flags != 0)
        release_if_idle(gpu);
    if (lease->draining)
        return drain_ns;
    if (!gate_is_open(gpu) || lease->flags == 0)
        return FOREVER;
    return lease->flags & LEASE_CONTENDED ? CONTENDED_POLL_NS : COUNTED_POLL_NS;
}

void lease_rejoin(uint32_t gpu) {
    lease_t *lease = &leases[gpu];
    lease->requested = lease->draining = false;
    lease->lease = 0;
    if (gate_is_open(gpu))
        (void)arbiter_send(MESSAGE_WANT, gpu, LEASE_HELD, 0);
}
