/* Loaded libraries: which one a function belongs to, and whether it is still loaded. */
#ifndef GPUSHARE_LOADED_H
#define GPUSHARE_LOADED_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uintptr_t base; /* 0: not in the loader's list, for instance in another namespace */
    char file[512];
    unsigned long long unloads; /* the process's count of unloads at the last check */
} loaded_t;

/* Find the library that contains the function. */
void loaded_containing(const void *function, loaded_t *found);

/* Whether the library is still loaded. Cheap unless a library has been unloaded since the last check. */
bool loaded_is_present(loaded_t *library);

#endif
