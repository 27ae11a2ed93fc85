/* The rows of the hook table with our functions (see hook_rows in hooks.h), and the functions that are refused. */
#include "driver/hooks.h"
#include "driver/refusal.h"

#define HOOK(library, symbol, returns, parameters)
#define REFUSE(symbol, what)
#define NEED(library, symbol, returns, parameters)
#define LAUNCH(library, symbol, stream) extern void *real_##symbol;
#include "driver/hooks.def"
#undef HOOK
#undef REFUSE
#undef NEED
#undef LAUNCH

const hook_row_t hook_rows[HOOK_COUNT] = {
#define HOOK(library, symbol, returns, parameters) {#symbol, LIBRARY_##library, (void *)symbol, NULL},
#define REFUSE(symbol, what) {#symbol, LIBRARY_CUDA, (void *)symbol, NULL},
#define NEED(library, symbol, returns, parameters) {#symbol, LIBRARY_##library, NULL, NULL},
#define LAUNCH(library, symbol, stream) {#symbol, LIBRARY_##library, (void *)symbol, &real_##symbol},
#include "driver/hooks.def"
#undef HOOK
#undef REFUSE
#undef NEED
#undef LAUNCH
};

/* Refused functions ignore their arguments, so they need no parameters. */
#define HOOK(library, symbol, returns, parameters)
#define NEED(library, symbol, returns, parameters)
#define LAUNCH(library, symbol, stream)
#define REFUSE(symbol, what)                                                                                           \
    CUresult symbol(void) {                                                                                            \
        return refusal(HOOK_##symbol, what);                                                                           \
    }
#include "driver/hooks.def"
