#include "base/fork.h"

#include <stddef.h>

/* The beginning and the end of the section: the linker defines them. */
extern fork_child_t *const __start_fork_children[] __attribute__((visibility("hidden")));
extern fork_child_t *const __stop_fork_children[] __attribute__((visibility("hidden")));

/* glibc's own name of pthread_atfork: the latter is in a static part that wants start files, which bring constructors.
 */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);

/* In the child only the calling thread exists; locks that others held in the parent will not be released by anyone. */
static void reset_child(void) {
    for (fork_child_t *const *child = __start_fork_children; child != __stop_fork_children; child++)
        (*child)();
}

bool fork_watch(void) {
    static bool watching; /* kept in the child: the handler is inherited */
    if (__atomic_exchange_n(&watching, true, __ATOMIC_SEQ_CST))
        return true;
    bool registered = __register_atfork(NULL, NULL, reset_child, NULL) == 0;
    if (!registered)
        __atomic_store_n(&watching, false, __ATOMIC_SEQ_CST);
    return registered;
}
