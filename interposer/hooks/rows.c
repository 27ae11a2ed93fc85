/* The rows of the table with the functions that stand for the drivers': see hook_rows in hooks.h. */
#include "driver/hooks.h"

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
