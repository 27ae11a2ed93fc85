#include "fork.h"

#include <stddef.h>

/* glibc's own name of pthread_atfork: the latter is in a static part that wants start files, which bring constructors.
 */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);

static void begin_anew(void) {
    share_after_fork();
    device_after_fork();
    charge_after_fork();
    context_after_fork();
    pool_after_fork();
    physical_after_fork();
    keeper_after_fork();
    graph_after_fork();
    gate_after_fork();
    helper_after_fork();
    arbiter_after_fork();
    lease_after_fork();
    marker_after_fork();
    capture_after_fork();
}

bool fork_watch(void) {
    static bool watching; /* kept in the child: the handler is inherited */
    if (!watching)
        watching = __register_atfork(NULL, NULL, begin_anew, NULL) == 0;
    return watching;
}
