#define _GNU_SOURCE
#include "base/table.h"

#include <sys/mman.h>

#define FIRST_CAPACITY 1024u

static size_t home(const table_t *table, uint64_t key) {
    return (size_t)((key ^ key >> 21) * 0x9e3779b97f4a7c15ull >> 20) & (table->capacity - 1);
}

/* Return the key's place, or the free place for it. */
static size_t find(const table_t *table, uint64_t key) {
    size_t at = home(table, key);
    while (table->entries[at].key != 0 && table->entries[at].key != key)
        at = (at + 1) & (table->capacity - 1);
    return at;
}

static bool grow(table_t *table) {
    table_t larger = {.capacity = table->capacity > 0 ? table->capacity * 2 : FIRST_CAPACITY, .used = table->used};
    void *memory =
        mmap(NULL, larger.capacity * sizeof(entry_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    larger.entries = memory;
    for (size_t i = 0; i < table->capacity; i++) {
        if (table->entries[i].key != 0)
            larger.entries[find(&larger, table->entries[i].key)] = table->entries[i];
    }
    if (table->capacity > 0)
        munmap(table->entries, table->capacity * sizeof(entry_t));
    table->entries = larger.entries;
    table->capacity = larger.capacity;
    return true;
}

/* Later entries move into the gap if that brings them closer to their home, so that no search stops early. */
static void remove_at(table_t *table, size_t gap) {
    size_t mask = table->capacity - 1;
    for (size_t at = (gap + 1) & mask; table->entries[at].key != 0; at = (at + 1) & mask) {
        size_t distance = (at - home(table, table->entries[at].key)) & mask;
        if (distance >= ((at - gap) & mask)) {
            table->entries[gap] = table->entries[at];
            gap = at;
        }
    }
    table->entries[gap].key = 0;
    table->used--;
}

bool table_put(table_t *table, const entry_t *entry, entry_t *old_p) {
    pthread_mutex_lock(&table->mutex);
    bool room = (table->used + 1) * 4 <= table->capacity * 3 || grow(table);
    if (room) {
        entry_t *place = &table->entries[find(table, entry->key)];
        *old_p = *place;
        table->used += place->key == 0;
        *place = *entry;
    }
    pthread_mutex_unlock(&table->mutex);
    return room;
}

static bool lookup(table_t *table, uint64_t key, entry_t *entry_p, bool and_remove) {
    bool found = false;
    pthread_mutex_lock(&table->mutex);
    if (table->capacity > 0 && key != 0) {
        size_t at = find(table, key);
        found = table->entries[at].key == key;
        if (found)
            *entry_p = table->entries[at];
        if (found && and_remove)
            remove_at(table, at);
    }
    pthread_mutex_unlock(&table->mutex);
    return found;
}

bool table_get(table_t *table, uint64_t key, entry_t *entry_p) {
    return lookup(table, key, entry_p, false);
}

bool table_remove(table_t *table, uint64_t key, entry_t *entry_p) {
    return lookup(table, key, entry_p, true);
}

bool table_containing(table_t *table, uint64_t address, entry_t *entry_p) {
    bool found = false;
    pthread_mutex_lock(&table->mutex);
    for (size_t i = 0; i < table->capacity && !found; i++) {
        const entry_t *entry = &table->entries[i];
        found = entry->key != 0 && address - entry->key < entry->bytes;
        if (found)
            *entry_p = *entry;
    }
    pthread_mutex_unlock(&table->mutex);
    return found;
}

void table_change_owner(table_t *table, uint64_t from, uint64_t to, void (*each)(entry_t *entry)) {
    pthread_mutex_lock(&table->mutex);
    for (size_t i = 0; i < table->capacity; i++) {
        if (table->entries[i].key == 0 || table->entries[i].owner != from)
            continue;
        table->entries[i].owner = to;
        if (each != NULL)
            each(&table->entries[i]);
    }
    pthread_mutex_unlock(&table->mutex);
}

/* Return the place of the owner's first entry from `at` on, or the capacity. */
static size_t owned_from(const table_t *table, uint64_t owner, size_t at) {
    while (at < table->capacity && (table->entries[at].key == 0 || table->entries[at].owner != owner))
        at++;
    return at;
}

/* Removing an entry only moves later ones forward. But if the table has grown meanwhile, an entry may now be before
 * `*from_p`, so the last search starts from the beginning. */
bool table_remove_owned(table_t *table, uint64_t owner, entry_t *entry_p, size_t *from_p) {
    pthread_mutex_lock(&table->mutex);
    size_t at = owned_from(table, owner, *from_p);
    if (at >= table->capacity && *from_p > 0)
        at = owned_from(table, owner, 0);
    const bool found = at < table->capacity;
    if (found) {
        *entry_p = table->entries[at];
        remove_at(table, at);
    }
    *from_p = found ? at : 0;
    pthread_mutex_unlock(&table->mutex);
    return found;
}

void table_clear(table_t *table) {
    if (table->capacity > 0)
        munmap(table->entries, table->capacity * sizeof(entry_t));
    *table = (table_t)TABLE_INITIALIZER;
}
