#define _GNU_SOURCE
#include "helper.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "flow.h"
#include "fork.h"
#include "gate.h"
#include "marker.h"
#include "report.h"
#include "share.h"
#include "wire.h"

#define MS_NS 1000000ull
#define DRAIN_LOOK_NS (MS_NS / 10)
#define CONTENDED_LOOK_NS (MS_NS / 2)
#define QUIET_LOOKS 1 /* so often the GPU is seen idle before its lease goes back */
#define COUNTED_LOOK_NS (100 * MS_NS)
/* What runs ends soon enough for the next one to be told to begin: about as long as that takes. Much sooner, and both
 * would take turns on the GPU for the rest, which only one of them pays for. */
#define SOON_NS (MS_NS / 2)
#define RECONNECT_NS (500 * MS_NS)
#define PERIOD_NS (100 * MS_NS) /* of those that share without an arbiter */
#define FOR_EVER UINT64_MAX

typedef struct {
    uint64_t lease;
    uint64_t returned; /* the last one that was given back: what is said of it comes too late */
    uint32_t flags;
    bool wanted;    /* we have asked */
    bool draining;  /* the gate is closed, and what ran when it closed may run still */
    bool closing;   /* the arbiter is still to be told that it ends soon */
    unsigned quiet; /* for so many looks nothing was launched */
    uint64_t launches;
} lease_t;

static struct {
    bool started;
    bool running;
    int wake;
    int socket; /* the share's own, with the same number also when it is another connection */
    bool connected;
    int fresh; /* that is being made, or -1 */
    bool told;
    bool apart; /* see stay_apart */
    uint64_t try_ns;
    uint32_t reclaimed; /* a futex: answers so far */
    lease_t leases[MAX_GPUS];
} helper = {.wake = -1, .socket = -1, .fresh = -1};

void helper_after_fork(void) {
    if (helper.wake >= 0)
        close(helper.wake);
    if (helper.fresh >= 0)
        close(helper.fresh);
    memset(&helper, 0, sizeof helper);
    helper.wake = helper.socket = helper.fresh = -1;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool tell(unsigned type, uint32_t gpu, uint32_t flags, uint64_t number) {
    return helper.connected && wire_send_lease(helper.socket, type, gpu, flags, number);
}

static bool give_back(uint32_t gpu) {
    lease_t *lease = &helper.leases[gpu];
    if (!tell(MESSAGE_RELEASED, gpu, 0, lease->lease))
        return false;
    lease->returned = lease->lease;
    return true;
}

/* What this thread asks the driver concerns nobody's capture. Not said at its start: CUDA may not have begun by then.
 */
static void stay_apart(void) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    helper.apart = helper.apart || REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
}

static void open_gate(uint32_t gpu, uint32_t flags) {
    lease_t *lease = &helper.leases[gpu];
    stay_apart();
    lease->flags = flags;
    lease->draining = false;
    lease->quiet = 0;
    gate_open(gpu, (flags & (LEASE_COUNTED | LEASE_CONTENDED)) != 0, (flags & LEASE_BRIEF) != 0);
}

static void close_gate(uint32_t gpu) {
    gate_close(gpu);
    marker_record(gpu);
    helper.leases[gpu].draining = true;
}

/* While the last work runs out, the next one is told to begin. */
static uint64_t drain(uint32_t gpu) {
    lease_t *lease = &helper.leases[gpu];
    if (marker_done(gpu)) {
        lease->draining = !give_back(gpu);
        return DRAIN_LOOK_NS;
    }
    uint64_t left_ns = flow_left_ns(gpu, gate_passed(gpu));
    if (lease->closing && left_ns <= SOON_NS)
        lease->closing = !tell(MESSAGE_CLOSED, gpu, 0, lease->lease);
    bool known = lease->closing && left_ns != UINT64_MAX;
    uint64_t look_ns = known && left_ns > SOON_NS ? left_ns - SOON_NS : DRAIN_LOOK_NS;
    return look_ns < CONTENDED_LOOK_NS ? look_ns : CONTENDED_LOOK_NS;
}

static void take_back(uint32_t gpu, uint64_t number) {
    lease_t *lease = &helper.leases[gpu];
    bool any = number == 0;
    if (!gate_is_open(gpu) || !(any || number == lease->lease)) {
        if (any || (number == lease->lease && !lease->draining))
            (void)tell(MESSAGE_RELEASED, gpu, 0, number);
        return;
    }
    if (any)
        lease->lease = 0;
    close_gate(gpu);
    lease->closing = true;
    drain(gpu);
}

static void receive(void) {
    wire_lease_t message;
    for (;;) {
        switch (wire_next(helper.socket, &message)) {
        case WIRE_NOTHING:
            return;
        case WIRE_RECLAIMED:
            __atomic_add_fetch(&helper.reclaimed, 1, __ATOMIC_SEQ_CST);
            (void)syscall(SYS_futex, &helper.reclaimed, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
            break;
        case WIRE_LEASE:
            /* Each time that we are given it, a lease has another number. */
            if (message.header.type == MESSAGE_OPEN && message.lease != helper.leases[message.gpu].returned) {
                helper.leases[message.gpu].lease = message.lease;
                helper.leases[message.gpu].wanted = false;
                open_gate(message.gpu, message.flags);
            } else if (message.header.type == MESSAGE_REVOKE) {
                take_back(message.gpu, message.lease);
            }
            break;
        case WIRE_END:
            /* The socket stays open until there is another: only this process's death may close its last one. */
            helper.connected = false;
            helper.try_ns = 0;
            if (!helper.told)
                report("the arbiter went away: memory limits still hold, and where the GPU is shared this program "
                       "launches for its request's part of the time, until the node's agent runs again");
            helper.told = true;
            return;
        }
    }
}

/* Nothing to do, and others wait, or there is a limit: the lease goes back. What is launched in between is seen. */
static void look_whether_idle(uint32_t gpu) {
    lease_t *lease = &helper.leases[gpu];
    uint64_t launches = gate_launches(gpu);
    if (launches != lease->launches || gate_is_waited_for(gpu)) {
        lease->launches = launches;
        lease->quiet = 0;
        return;
    }
    if (lease->quiet == 0)
        marker_record(gpu);
    if (!marker_done(gpu))
        return;
    /* It may be about to launch the next one, as a program does that waits for each of them. */
    if (lease->quiet++ < QUIET_LOOKS)
        return;
    gate_close(gpu);
    if (gate_launches(gpu) != launches || !give_back(gpu))
        open_gate(gpu, lease->flags);
}

/* Without an arbiter those that have neighbours take turns by the clock, each for its request's part of the time. */
static void share_by_clock(uint32_t gpu) {
    lease_t *lease = &helper.leases[gpu];
    uint64_t phase_ns = (now_ns() + (uint64_t)getpid() * 37 * MS_NS) % PERIOD_NS;
    unsigned percent = share_request_percent(gpu);
    bool turn = phase_ns < (percent > 0 ? percent : 1) * (PERIOD_NS / 100);
    if (turn && !gate_is_open(gpu) && gate_is_waited_for(gpu))
        open_gate(gpu, LEASE_COUNTED);
    else if (!turn && gate_is_open(gpu) && lease->flags != 0)
        gate_close(gpu);
}

static uint64_t look(uint32_t gpu) {
    lease_t *lease = &helper.leases[gpu];
    if (!helper.connected) {
        share_by_clock(gpu);
        return gate_is_open(gpu) ? (lease->flags != 0 ? MS_NS : FOR_EVER) : gate_is_waited_for(gpu) ? MS_NS : FOR_EVER;
    }
    uint64_t drain_ns = lease->draining ? drain(gpu) : 0;
    bool is_open = gate_is_open(gpu);
    if (!is_open && !lease->wanted && gate_is_waited_for(gpu))
        lease->wanted = tell(MESSAGE_WANT, gpu, 0, 0);
    if (is_open && lease->flags != 0)
        look_whether_idle(gpu);
    if (lease->draining)
        return drain_ns;
    if (!gate_is_open(gpu) || lease->flags == 0)
        return FOR_EVER;
    return lease->flags & LEASE_CONTENDED ? CONTENDED_LOOK_NS : COUNTED_LOOK_NS;
}

/* A new arbiter knows nothing: it is told what we hold, and asked for what we wait for. Whatever is said first tells it
 * that this process goes by its limits page now. */
static void resume(void) {
    (void)wire_ask_reclaim(helper.socket);
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        lease_t *lease = &helper.leases[gpu];
        lease->wanted = lease->draining = false;
        lease->lease = 0;
        if (gate_is_open(gpu))
            (void)tell(MESSAGE_WANT, gpu, LEASE_HELD, 0);
    }
}

static void give_up(void) {
    close(helper.fresh);
    helper.fresh = -1;
}

/* The new connection takes the place of the old one, whose descriptor is never free for the application to get. */
static bool adopt(void) {
    bool adopted = dup3(helper.fresh, helper.socket, O_CLOEXEC) >= 0;
    give_up();
    return adopted;
}

static void reconnect(void) {
    char sentence[512];
    wire_welcome_result_t welcome;
    bool again = false;
    if (helper.fresh < 0) {
        int fresh;
        if (wire_begin(&fresh, sentence, sizeof sentence))
            helper.fresh = fresh;
        helper.try_ns = now_ns() + RECONNECT_NS;
        return;
    }
    if (!wire_finish(helper.fresh, &welcome, &again, sentence, sizeof sentence)) {
        if (!again)
            give_up();
        return;
    }
    if (!share_rejoin(&welcome)) {
        give_up();
        report("the arbiter that runs now has other pages for this container: restart the container");
        helper.try_ns = FOR_EVER;
        return;
    }
    if (!adopt())
        return;
    helper.connected = true;
    resume();
}

static void wait_until(uint64_t wake_ns) {
    uint64_t at_ns = now_ns();
    uint64_t left_ns = wake_ns > at_ns ? wake_ns - at_ns : 0;
    struct timespec timeout = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
    struct pollfd descriptors[] = {
        {.fd = helper.wake, .events = POLLIN},
        {.fd = helper.connected ? helper.socket : helper.fresh, .events = POLLIN},
    };
    (void)ppoll(descriptors, 2, wake_ns == FOR_EVER ? NULL : &timeout, NULL);
    uint64_t count;
    if (descriptors[0].revents != 0 && read(helper.wake, &count, sizeof count) < 0)
        return; /* it does not matter how often */
}

static void *run(void *unused) {
    (void)unused;
    /* Its sleeps are short, and their ends are handovers: the kernel is not to put them off. */
    (void)prctl(PR_SET_TIMERSLACK, 1ul);
    for (;;) {
        uint64_t wake_ns = FOR_EVER;
        if (helper.connected)
            receive();
        if (!helper.connected && (helper.fresh >= 0 || now_ns() >= helper.try_ns))
            reconnect();
        if (!helper.connected)
            wake_ns = helper.try_ns > now_ns() ? helper.try_ns : now_ns() + RECONNECT_NS;
        for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
            uint64_t after_ns = look(gpu);
            if (after_ns != FOR_EVER && now_ns() + after_ns < wake_ns)
                wake_ns = now_ns() + after_ns;
        }
        wait_until(wake_ns);
    }
    return NULL;
}

/* No signal of the application's is for this thread. */
static bool start(void) {
    sigset_t all, old;
    helper.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    helper.socket = share_hand_over();
    __atomic_store_n(&helper.connected, true, __ATOMIC_SEQ_CST);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &old);
    bool started = helper.wake >= 0 && driver_thread(run);
    sigprocmask(SIG_SETMASK, &old, NULL);
    if (!started) {
        helper.connected = false;
        report("no thread for leases can be started: launches wait for ever; raise the container's limit of processes");
    }
    return started;
}

void helper_start(void) {
    if (!__atomic_exchange_n(&helper.started, true, __ATOMIC_ACQ_REL) && start())
        __atomic_store_n(&helper.running, true, __ATOMIC_RELEASE);
}

void helper_wake(void) {
    uint64_t one = 1;
    if (!__atomic_load_n(&helper.running, __ATOMIC_ACQUIRE))
        return; /* it is being started, and will look at once */
    if (write(helper.wake, &one, sizeof one) < 0)
        return; /* it is full: it will wake */
}

void helper_reclaim(void) {
    const struct timespec longest = {.tv_sec = 1};
    uint32_t before = __atomic_load_n(&helper.reclaimed, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&helper.connected, __ATOMIC_SEQ_CST) && wire_ask_reclaim(helper.socket))
        (void)syscall(SYS_futex, &helper.reclaimed, FUTEX_WAIT_PRIVATE, before, &longest, NULL, 0);
}
