#define _GNU_SOURCE
#include "session/helper.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "compute/gate.h"
#include "compute/lease.h"
#include "driver/driver.h"
#include "link/arbiter.h"
#include "share/share.h"

static int wake_fd = -1; /* an eventfd */

static void helper_after_fork(void) {
    if (wake_fd >= 0)
        close(wake_fd);
    wake_fd = -1;
}
FORK_ON_CHILD(helper_after_fork)

static void handle_messages(void) {
    wire_lease_t message;
    while (arbiter_receive(&message)) {
        if (message.header.type == MESSAGE_OPEN)
            lease_open(message.gpu, message.flags, message.lease);
        else if (message.header.type == MESSAGE_REVOKE)
            lease_revoke(message.gpu, message.lease);
    }
}

/* Do everything that can be done now. Returns the time of the next step if no message arrives. */
static uint64_t poll_once(void) {
    handle_messages();
    bool rejoined = !arbiter_is_connected() && arbiter_reconnect(share_rejoin);
    for (uint32_t gpu = 0; rejoined && gpu < share_gpu_count(); gpu++)
        lease_rejoin(gpu);
    uint64_t wake_ns = arbiter_wake_ns();
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        uint64_t after_ns = lease_poll(gpu);
        if (after_ns != FOREVER && now_ns() + after_ns < wake_ns)
            wake_ns = now_ns() + after_ns;
    }
    return wake_ns;
}

static void wait_until(uint64_t wake_ns) {
    uint64_t at_ns = now_ns();
    const struct timespec timeout = time_of(wake_ns > at_ns ? wake_ns - at_ns : 0);
    struct pollfd descriptors[] = {
        {.fd = wake_fd, .events = POLLIN},
        {.fd = arbiter_descriptor(), .events = POLLIN},
    };
    (void)ppoll(descriptors, 2, wake_ns == FOREVER ? NULL : &timeout, NULL);
    uint64_t count;
    if (descriptors[0].revents != 0 && read(wake_fd, &count, sizeof count) < 0)
        return; /* the count does not matter */
}

static void *run(void *unused) {
    (void)unused;
    /* Without timer slack: the thread's short sleeps end with handovers, which should not be late. */
    (void)prctl(PR_SET_TIMERSLACK, 1ul);
    for (;;)
        wait_until(poll_once());
    return NULL;
}

/* Called by a launch that waits. It contains no cancellation point: a cancelled thread would stay counted at the
 * gate. */
static void wake_helper(void) {
    uint64_t one = 1;
    (void)syscall(SYS_write, wake_fd, &one, sizeof one); /* if the counter is full, a wake-up is already pending */
}

/* The thread blocks all signals, which are meant for the application. */
static bool start_thread(void) {
    sigset_t all, old;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &old);
    bool started = driver_thread(run);
    sigprocmask(SIG_SETMASK, &old, NULL);
    return started;
}

bool helper_start(char *sentence, size_t size) {
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0) {
        (void)snprintf(sentence, size,
                       "no descriptor for the helper thread: raise the container's limit on open files");
        return false;
    }
    gate_begin(wake_helper);
    if (start_thread())
        return true;
    close(wake_fd);
    wake_fd = -1;
    (void)snprintf(sentence, size,
                   "the helper thread cannot be started: raise the container's limit on processes or on address space");
    return false;
}
