/* Libraries in memory, as the loader lists them: which one a function is in, and whether it is still there. */
#ifndef GPUSHARE_LOADED_H
#define GPUSHARE_LOADED_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uintptr_t base; /* 0: it is in none that is listed: in another namespace, for instance */
    char file[512];
    unsigned long long unloads; /* of all libraries, when it was last seen */
} loaded_t;

/* The library that has the function. */
void loaded_containing(const void *function, loaded_t *found);

/* Whether it has not been unloaded since. Costs little while nothing is unloaded. */
bool loaded_is_present(loaded_t *library);

#endif
