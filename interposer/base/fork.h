/* What a fork means here: the child begins again, without a share and without memory of its parent's allocations.
 *
 * Each file whose state the child must not keep says so itself, in a row that the linker puts together with the others
 * (section fork_children). So nothing has to run in a process to register it, and this file knows none of them. */
#ifndef GPUSHARE_FORK_H
#define GPUSHARE_FORK_H

#include <stdbool.h>

typedef void fork_child_t(void);

/* `function` runs in each child of a fork, before fork() returns there; in which order, nobody can rely on. */
#define FORK_ON_CHILD(function)                                                                                        \
    static fork_child_t *const on_child_##function __attribute__((section("fork_children"), used)) = function;

/* From now on the functions above are called in children. False: there is no memory to be registered with libc. */
bool fork_watch(void);

#endif
