/* The real libraries: the only place that looks for them.
 *
 * A library is found when the application has loaded it; this library never loads one by itself. A program may try
 * several copies of a library; the first that it starts is the one that it uses. No lock is held while the loader is
 * called: it could meet the loader's own in the other order. */
#ifndef GPUSHARE_DRIVER_H
#define GPUSHARE_DRIVER_H

#include <stdbool.h>

#include "driver/hooks.h"

/* Those of a library that has been started; for driver_function only. */
extern void *driver_functions[HOOK_COUNT];
void *driver_search(hook_t hook);

/* The real function of a row. If the driver has none: a function that returns the library's "not found". */
static inline void *driver_function(hook_t hook) {
    void *function = __atomic_load_n(&driver_functions[hook], __ATOMIC_ACQUIRE);
    return function != NULL ? function : driver_search(hook);
}
#define REAL(symbol) ((__typeof__(symbol) *)driver_function(HOOK_##symbol))

/* Whether this driver has it. */
bool driver_has(hook_t hook);

/* From now on a launch that passes the gate comes to `function` in place of the real one. */
void driver_divert(hook_t launch, void *function);

/* The hook for a function that the driver has given, which may be the hook itself; or NULL. */
void *driver_hook_for(const void *function);

/* The application has started the library by this function, which is what the row of `start` means: from now on this
 * copy of it is the one that is used. */
void driver_pin(hook_t start, void *function);

/* What an application is given that looks for a function there: its hook; or one that refuses, of a second copy; or
 * NULL, with the reason left for dlerror. */
void *driver_lookup(void *handle, const hook_row_t *row);

/* Whether an application finds a symbol there that has no row. */
bool driver_has_symbol(void *handle, const char *symbol);

/* Leaves for dlerror that the symbol is not there. */
void driver_fail_lookup(void *handle, const char *symbol);

/* Starts a thread; false: this process cannot have one. */
bool driver_thread(void *(*run)(void *));

/* The next dlsym and dlopen in the chain, for the assembly to jump to. Set by driver_chain. */
extern void *driver_next_dlsym;
extern void *driver_next_dlopen;
void driver_chain(void);

/* The next dlopen, called from here: for a file whose directory is named. */
void *driver_open(const char *file, int mode);

#endif
