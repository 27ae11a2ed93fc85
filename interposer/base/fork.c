#include "base/fork.h"

#include <stddef.h>

/* The start and end of the section, defined by the linker. */
extern fork_child_t *const __start_fork_children[] __attribute__((visibility("hidden")));
extern fork_child_t *const __stop_fork_children[] __attribute__((visibility("hidden")));

/* glibc's internal name of pthread_atfork. The public one is in a static part of libc that needs start files, and
 * those add constructors. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);

/* Only the calling thread exists in the child, so locks that other threads held in the parent are never released. */
static void reset_child(void) {
    for (fork_child_t *const *child = __start_fork_children; child != __stop_fork_children; child++)
        (*child)();
}

bool fork_watch(void) {
    static bool watching; /* kept in the child, which inherits the handler */
    if (__atomic_exchange_n(&watching, true, __ATOMIC_SEQ_CST))
        return true;
    bool registered = __register_atfork(NULL, NULL, reset_child, NULL) == 0;
    if (!registered)
        __atomic_store_n(&watching, false, __ATOMIC_SEQ_CST);
    return registered;
}
