/* Forks: a child starts without a share and without its parent's allocations.
 *
 * Each file with state to reset adds a row to a section that the linker collects (fork_children). So the library
 * runs no code to register the functions, and this file does not depend on their files. */
#ifndef GPUSHARE_FORK_H
#define GPUSHARE_FORK_H

#include <stdbool.h>

typedef void fork_child_t(void);

/* `function` runs in each forked child before fork() returns there. The order is unspecified. */
#define FORK_ON_CHILD(function)                                                                                        \
    static fork_child_t *const on_child_##function __attribute__((section("fork_children"), used)) = function;

/* Start calling the functions above in children. Returns false if libc has no memory to register the handler. */
bool fork_watch(void);

#endif
