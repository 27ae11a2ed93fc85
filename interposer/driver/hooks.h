/* The table of hooks and their prototypes, generated from hooks.def. */
#ifndef GPUSHARE_HOOKS_H
#define GPUSHARE_HOOKS_H

#include <stdbool.h>

#include "base/abi.h"

#pragma GCC visibility push(default)
#define HOOK(library, symbol, returns, parameters) returns symbol parameters;
#define REFUSE(symbol, what) CUresult symbol(void);
#define NEED(library, symbol, returns, parameters) returns symbol parameters;
#define LAUNCH(library, symbol, stream) CUresult symbol(void);
#include "driver/hooks.def"
#undef HOOK
#undef REFUSE
#undef NEED
#undef LAUNCH
#pragma GCC visibility pop

typedef enum {
#define HOOK(library, symbol, returns, parameters) HOOK_##symbol,
#define REFUSE(symbol, what) HOOK_##symbol,
#define NEED(library, symbol, returns, parameters) HOOK_##symbol,
#define LAUNCH(library, symbol, stream) HOOK_##symbol,
#include "driver/hooks.def"
#undef HOOK
#undef REFUSE
#undef NEED
#undef LAUNCH
    HOOK_COUNT
} hook_t;

typedef enum { LIBRARY_CUDA, LIBRARY_NVML, LIBRARY_COUNT } library_t;

typedef struct {
    const char *symbol;
    library_t library;
    void *replacement; /* NULL: called but not intercepted */
    void **real;       /* for a launch: where its assembly loads the real one from */
} hook_row_t;

/* One row for each hook_t, in that order. The rows name the hooks, which are in the highest layer, so they are
 * defined there (hooks/rows.c). They are constant data, and the only thing that a layer gets from a higher one. */
extern const hook_row_t hook_rows[HOOK_COUNT];

/* Return the row of an intercepted symbol, or NULL. Takes no lock and allocates no memory. */
const hook_row_t *hooks_find(const char *symbol);

/* Whether the name is another variant of an intercepted CUDA function, with a suffix such as `_v3` or `_ptsz`. The
 * table has every variant in CUDA's headers, so a driver with another one is newer than this library. */
bool hooks_is_variant(const char *symbol);

#endif
