#include "driver/hooks.h"

#include <stdatomic.h>
#include <string.h>

#define PLACES 1024u /* a power of two, several times the number of rows */
_Static_assert(HOOK_COUNT < PLACES / 2, "more places: searches get long");

static _Atomic uint16_t places[PLACES]; /* a hash table of rows by symbol: the row's index plus one; 0: free */
static atomic_bool filled;

/* FNV-1a. */
static uint32_t hash_of(const char *symbol) {
    uint32_t hash = 2166136261u;
    for (; *symbol != '\0'; symbol++)
        hash = (hash ^ (unsigned char)*symbol) * 16777619u;
    return hash ^ hash >> 16;
}

/* Return the symbol's row, or NULL, and its place, or the free place for it. */
static const hook_row_t *find(const char *symbol, unsigned *place_p) {
    for (unsigned place = hash_of(symbol);; place++) {
        *place_p = place % PLACES;
        unsigned row = atomic_load_explicit(&places[*place_p], memory_order_relaxed);
        if (row == 0)
            return NULL;
        if (strcmp(hook_rows[row - 1].symbol, symbol) == 0)
            return &hook_rows[row - 1];
    }
}

/* Several threads may fill the table at once. Entries are never removed, so each finds what the others have added. */
static void fill(void) {
    for (unsigned i = 0; i < HOOK_COUNT; i++) {
        uint16_t row = (uint16_t)(i + 1), none = 0;
        unsigned place;
        while (hook_rows[i].replacement != NULL && find(hook_rows[i].symbol, &place) == NULL &&
               !atomic_compare_exchange_strong(&places[place], &none, row))
            none = 0;
    }
    atomic_store_explicit(&filled, true, memory_order_release);
}

const hook_row_t *hooks_find(const char *symbol) {
    unsigned place;
    if (!atomic_load_explicit(&filled, memory_order_acquire))
        fill();
    return find(symbol, &place);
}

static bool ends_in(const char *text, size_t length, const char *end) {
    return length > strlen(end) && memcmp(text + length - strlen(end), end, strlen(end)) == 0;
}

/* Return the symbol's length without suffixes such as `_v3` and `_ptsz`. */
static size_t base_length(const char *symbol) {
    size_t length = strlen(symbol);
    if (ends_in(symbol, length, "_ptsz") || ends_in(symbol, length, "_ptds"))
        length -= strlen("_ptsz");
    size_t digits = length;
    while (digits > 0 && symbol[digits - 1] >= '0' && symbol[digits - 1] <= '9')
        digits--;
    return digits < length && ends_in(symbol, digits, "_v") ? digits - strlen("_v") : length;
}

bool hooks_is_variant(const char *symbol) {
    char base[64]; /* longer than any name in the table */
    size_t length = base_length(symbol);
    if (length >= sizeof base)
        return false;
    memcpy(base, symbol, length);
    base[length] = '\0';
    const hook_row_t *row = hooks_find(base);
    return row != NULL && row->library == LIBRARY_CUDA;
}
