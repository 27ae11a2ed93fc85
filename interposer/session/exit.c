#include "session/exit.h"

#include <stdbool.h>
#include <stddef.h>

#include "compute/marker.h"

/* atexit itself is in a static part that wants start files. */
extern int __cxa_atexit(void (*function)(void *), void *argument, void *library);

static void park(void *unused) {
    (void)unused;
    marker_park();
}

/* What registers last is called first: ours before the driver's own, which takes down what our thread would ask. */
void exit_watch(void) {
    static bool watching; /* kept in the child: the handler is inherited */
    if (!__atomic_exchange_n(&watching, true, __ATOMIC_SEQ_CST))
        (void)__cxa_atexit(park, NULL, NULL);
}
