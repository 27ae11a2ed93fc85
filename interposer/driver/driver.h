/* The real libraries: the only place that looks for them.
 *
 * A library is found when the application has loaded it; this library never loads one by itself. Looking a function up
 * twice gives the same answer, so there is no lock: a lock here could meet the loader's own in the other order. */
#ifndef GPUSHARE_DRIVER_H
#define GPUSHARE_DRIVER_H

#include <stdbool.h>

#include "driver/hooks.h"

/* What has been found; for driver_function only. */
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

/* The real function where an application looks for it, or NULL, with the reason left for dlerror. */
void *driver_lookup(void *handle, const hook_row_t *row);

/* Whether an application finds a symbol there that has no row. */
bool driver_finds(void *handle, const char *symbol);

/* Leaves for dlerror that the symbol is not there. */
void driver_deny(void *handle, const char *symbol);

/* Starts a thread; false: this process cannot have one. */
bool driver_thread(void *(*run)(void *));

/* The next dlsym and dlopen in the chain, for the assembly to jump to. Set by driver_chain. */
extern void *driver_next_dlsym;
extern void *driver_next_dlopen;
void driver_chain(void);

/* The next dlopen, called from here: for a file whose directory is named. */
void *driver_open(const char *file, int mode);

#endif
