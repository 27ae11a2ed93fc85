/* What is known of pointers and handles: an open-addressed table. No CUDA types.
 *
 * Its lock is held for a look or a change only, never across a call to the driver, and it takes its memory from mmap,
 * so that an allocator that calls CUDA cannot meet itself here. */
#ifndef GPUSHARE_TABLE_H
#define GPUSHARE_TABLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t key; /* not 0 */
    uint64_t bytes;
    uint64_t owner; /* what the entry ends with, where it does */
    uint32_t gpu;
    uint32_t count;
} entry_t;

typedef struct {
    pthread_mutex_t mutex;
    entry_t *entries;
    size_t capacity; /* a power of two, or 0 */
    size_t used;
} table_t;

#define TABLE_INITIALIZER {.mutex = PTHREAD_MUTEX_INITIALIZER}

/* Puts an entry; one with the same key is replaced, and given in `*old_p` (else its key is 0). False: no memory. */
bool table_put(table_t *table, const entry_t *entry, entry_t *old_p);

bool table_get(table_t *table, uint64_t key, entry_t *entry_p);
bool table_remove(table_t *table, uint64_t key, entry_t *entry_p);

/* The entry whose range, key to key + bytes, has the address. Looks at all of them. */
bool table_containing(table_t *table, uint64_t address, entry_t *entry_p);

/* `each`, if not NULL, is called for every entry of them, with the lock held. */
void table_change_owner(table_t *table, uint64_t from, uint64_t to, void (*each)(entry_t *entry));

/* Takes one entry of this owner; false when there is none left. `*from_p`, 0 at first, is where to look on. */
bool table_remove_owned(table_t *table, uint64_t owner, entry_t *entry_p, size_t *from_p);

/* Empty again, and unlocked: for the child of a fork. */
void table_clear(table_t *table);

#endif
