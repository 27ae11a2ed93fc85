/* The table of hooks, and the prototypes of all of them: hooks.def in C. */
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
    void *replacement; /* NULL: called, not intercepted */
    void **real;       /* of a launch: where its assembly finds the real one */
} hook_row_t;

/* One for each hook_t, in that order. They name the hooks, which are in the layer above all others, so they are made
 * there (hooks/rows.c): the only thing that a layer has from one above it, and it is constant data. */
extern const hook_row_t hook_rows[HOOK_COUNT];

/* The row of a symbol that is intercepted, or NULL. Takes no lock and allocates nothing. */
const hook_row_t *hooks_find(const char *symbol);

/* Whether it is, by its name, another form of a symbol of CUDA's that is intercepted: `_v3`, `_ptsz`. Every form that
 * CUDA's headers have is in the table, so a driver that has this one is newer than the library. */
bool hooks_is_variant(const char *symbol);

#endif
