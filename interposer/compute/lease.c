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
#define MAX_IDLE_POLLS 1 /* so often the GPU is seen idle before its lease goes back */
#define COUNTED_POLL_NS (100 * MS_NS)
/* What runs ends soon enough for the next one to be told to begin: about as long as that takes. Much sooner, and both
 * would take turns on the GPU for the rest, which only one of them pays for. */
#define HANDOVER_NS (MS_NS / 2)
#define MAX_DRAIN_NS (100 * MS_NS)
#define PERIOD_NS (100 * MS_NS) /* of those that share without an arbiter */

typedef struct {
    uint64_t lease;
    uint64_t released; /* the lease that was given back last: an OPEN of it that was under way then is not heeded */
    uint32_t flags;
    bool requested;      /* we have asked */
    bool draining;       /* the gate is closed, and what ran when it closed may run still */
    bool close_pending;  /* the arbiter is still to be told that it ends soon */
    unsigned idle_polls; /* for so many looks nothing was launched */
    uint64_t opened_ns;
    uint64_t marked_ns; /* when it was last asked for what runs */
    uint64_t launches;
} lease_t;

static lease_t leases[MAX_GPUS];
static bool relaxed; /* see stay_apart */

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

/* What this thread asks the driver concerns nobody's capture. Not said at its start: CUDA may not have begun by then.
 */
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

/* Nothing runs any more, as far as the driver can be asked. For the rest counted launches tell how long they take;
 * others have as long again as they had until now. */
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

/* While the last work runs out, the next one is told to begin. */
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

/* Each time that we are given it, a lease has another number. */
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

/* Nothing to do, and others wait, or there is a limit: the lease goes back. What is launched in between is seen. */
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
    /* It may be about to launch the next one, as a program does that waits for each of them. */
    if (lease->idle_polls++ < MAX_IDLE_POLLS)
        return;
    gate_close(gpu);
    if (gate_launches(gpu) != launches || !release_lease(gpu))
        open_gate(gpu, lease->flags);
}

/* Without an arbiter each share launches in its own part of every PERIOD_NS. Which part that is, the limits page says.
 * An arbiter that leaves it unsaid leaves us the request's part, from a moment that follows from the process's number:
 * in many pods that number is the same, so such parts may fall together. */
static bool is_turn(uint32_t gpu) {
    uint64_t begin_ns, length_ns;
    if (share_turn(gpu, PERIOD_NS, &begin_ns, &length_ns))
        return (now_ns() + PERIOD_NS - begin_ns % PERIOD_NS) % PERIOD_NS < length_ns;
    unsigned percent = share_request_percent(gpu);
    return (now_ns() + (uint64_t)getpid() * 37 * MS_NS) % PERIOD_NS < (percent > 0 ? percent : 1) * (PERIOD_NS / 100);
}

/* Without an arbiter those that have neighbours take turns by the clock. */
static void share_by_clock(uint32_t gpu) {
    lease_t *lease = &leases[gpu];
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
