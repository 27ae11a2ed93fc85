/* A hash table of pointers and handles, with open addressing. No CUDA types.
 *
 * Its lock is held for one operation, never across a call to the driver. Memory comes from mmap, because an
 * allocator that calls CUDA would end up here again. */
#ifndef GPUSHARE_TABLE_H
#define GPUSHARE_TABLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t key; /* never 0 */
    uint64_t bytes;
    uint64_t owner; /* the object that the entry ends with, if any */
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

/* Add an entry. An entry with the same key is replaced and returned in `*old_p`, whose key is 0 otherwise. Returns
 * false if out of memory. */
bool table_put(table_t *table, const entry_t *entry, entry_t *old_p);

bool table_get(table_t *table, uint64_t key, entry_t *entry_p);
bool table_remove(table_t *table, uint64_t key, entry_t *entry_p);

/* Find the entry whose range, key to key + bytes, contains the address. Scans all entries. */
bool table_containing(table_t *table, uint64_t address, entry_t *entry_p);

/* Calls `each`, unless it is NULL, for every entry concerned, with the lock held. */
void table_change_owner(table_t *table, uint64_t from, uint64_t to, void (*each)(entry_t *entry));

/* Remove one entry of this owner. Returns false if there is none. `*from_p` starts at 0 and is where to continue. */
bool table_remove_owned(table_t *table, uint64_t owner, entry_t *entry_p, size_t *from_p);

/* Empty and unlock the table, in the child of a fork. */
void table_clear(table_t *table);

#endif
