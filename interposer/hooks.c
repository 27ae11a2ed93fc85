#include "hooks.h"

#include <string.h>

const hook_row_t hook_rows[HOOK_COUNT] = {
#define HOOK(library, symbol, returns, parameters) {#symbol, LIBRARY_##library, (void *)symbol},
#define REFUSE(symbol, what) {#symbol, LIBRARY_CUDA, (void *)symbol},
#define NEED(library, symbol, returns, parameters) {#symbol, LIBRARY_##library, NULL},
#include "hooks.def"
#undef HOOK
#undef REFUSE
#undef NEED
};

const hook_row_t *hooks_find(const char *symbol) {
    for (unsigned i = 0; i < HOOK_COUNT; i++) {
        if (hook_rows[i].replacement != NULL && strcmp(hook_rows[i].symbol, symbol) == 0)
            return &hook_rows[i];
    }
    return NULL;
}
