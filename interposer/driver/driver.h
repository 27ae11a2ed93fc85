/* The real libraries. Only this file searches for them.
 *
 * A library is found once the application has loaded it; this library never loads one. A program may try several
 * copies of a library; the first that it initializes stays in use. No lock is held while the loader is called,
 * because the loader's own lock could be taken in the opposite order. */
#ifndef GPUSHARE_DRIVER_H
#define GPUSHARE_DRIVER_H

#include <stdbool.h>

#include "driver/hooks.h"

/* The functions of initialized libraries. Only for driver_function. */
extern void *driver_functions[HOOK_COUNT];
void *driver_search(hook_t hook);

/* Return the real function of a row. If the driver lacks it, return a function that returns "not found". */
static inline void *driver_function(hook_t hook) {
    void *function = __atomic_load_n(&driver_functions[hook], __ATOMIC_ACQUIRE);
    return function != NULL ? function : driver_search(hook);
}
#define REAL(symbol) ((__typeof__(symbol) *)driver_function(HOOK_##symbol))

/* Whether this driver has the function. */
bool driver_has(hook_t hook);

/* Send launches that pass the gate to `function` instead of the real one. */
void driver_divert(hook_t launch, void *function);

/* Return the hook for a function that the driver returned, which may be the hook itself, or NULL. */
void *driver_hook_for(const void *function);

/* Keep using this copy of the library from now on: the application has initialized it through `function`, the real
 * one of the row `start`. */
void driver_pin(hook_t start, void *function);

/* Return what an application's lookup gets: the hook; for a second copy, a function that refuses; or NULL with
 * dlerror set. */
void *driver_lookup(void *handle, const hook_row_t *row);

/* Whether an application would find a symbol that is not in the table. */
bool driver_has_symbol(void *handle, const char *symbol);

/* Make dlerror report that the symbol does not exist. */
void driver_fail_lookup(void *handle, const char *symbol);

/* Start a thread. Returns false if the process cannot have one. */
bool driver_thread(void *(*run)(void *));

/* The next dlsym and dlopen in the chain, to which the assembly jumps. Set by driver_chain. */
extern void *driver_next_dlsym;
extern void *driver_next_dlopen;
void driver_chain(void);

/* Call the next dlopen for a file name with a directory. */
void *driver_open(const char *file, int mode);

#endif
