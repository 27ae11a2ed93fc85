#include "driver/hooks.h"

#include <string.h>

const hook_row_t *hooks_find(const char *symbol) {
    for (unsigned i = 0; i < HOOK_COUNT; i++) {
        if (hook_rows[i].replacement != NULL && strcmp(hook_rows[i].symbol, symbol) == 0)
            return &hook_rows[i];
    }
    return NULL;
}
