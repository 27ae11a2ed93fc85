#include "memory/physical.h"

#include "base/fork.h"
#include "base/table.h"
#include "memory/lingering.h"
#include "share/share.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static table_t pieces = TABLE_INITIALIZER;   /* number -> bytes, gpu, reference count; owner: state */
static table_t handles = TABLE_INITIALIZER;  /* handle -> owner: number, count of its references */
static table_t mappings = TABLE_INITIALIZER; /* address -> bytes, owner: number */
static table_t arrays = TABLE_INITIALIZER;   /* array and number -> bytes: number, owner: array */
static uint64_t last_number;

/* A piece's state. Its bytes count as certain only while no call that may end it is in progress. */
#define EXPORTED 1u /* exported to other processes */
#define CERTAIN 2u  /* counted as certain */
#define CALL 4u     /* the rest is the number of calls in progress */

static void physical_after_fork(void) {
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    table_clear(&pieces);
    table_clear(&handles);
    table_clear(&mappings);
    table_clear(&arrays);
}
FORK_ON_CHILD(physical_after_fork)

/* With the lock held. Cannot fail: the entry exists or was just removed. */
static void put(table_t *table, const entry_t *entry) {
    entry_t old;
    (void)table_put(table, entry, &old);
}

static void add_reference(uint64_t number) {
    entry_t piece;
    if (table_get(&pieces, number, &piece)) {
        piece.count++;
        put(&pieces, &piece);
    }
}

static void mark_certain(entry_t *piece) {
    if (piece->bytes > 0 && piece->owner < CALL && !(piece->owner & CERTAIN) && share_certain(piece->gpu, piece->bytes))
        piece->owner |= CERTAIN;
}

/* Called before a call that may end the piece. */
static void begin_call(uint64_t number) {
    entry_t piece;
    if (!table_get(&pieces, number, &piece))
        return;
    if (piece.owner & CERTAIN)
        share_uncertain(piece.gpu, piece.bytes);
    piece.owner = (piece.owner & ~(uint64_t)CERTAIN) + CALL;
    put(&pieces, &piece);
}

/* Called after it, with the number of references that it ended. Exported memory may have other holders, in any
 * container. */
static void end_call(uint64_t number, unsigned references) {
    entry_t piece;
    if (!table_remove(&pieces, number, &piece))
        return;
    piece.count -= references;
    piece.owner -= CALL;
    if (piece.count > 0) {
        mark_certain(&piece);
        put(&pieces, &piece);
    } else if (piece.owner & EXPORTED)
        lingering_add(piece.gpu, piece.bytes);
    else
        share_refund(piece.gpu, piece.bytes);
}

static void drop_reference(uint64_t number) {
    begin_call(number);
    end_call(number, 1);
}

static void reference_handle(CUmemGenericAllocationHandle handle, uint64_t number) {
    entry_t entry;
    if (!table_get(&handles, handle, &entry) || entry.owner != number)
        entry = (entry_t){.key = handle, .owner = number};
    entry.count++;
    put(&handles, &entry);
    add_reference(number);
}

bool physical_create(CUmemGenericAllocationHandle handle, uint64_t bytes, uint32_t gpu) {
    entry_t old;
    pthread_mutex_lock(&mutex);
    entry_t piece = {.key = ++last_number, .bytes = bytes, .gpu = gpu, .count = 1};
    entry_t entry = {.key = handle, .owner = piece.key, .count = 1};
    mark_certain(&piece);
    bool recorded = table_put(&pieces, &piece, &old) && table_put(&handles, &entry, &old);
    if (!recorded && piece.owner & CERTAIN) {
        share_uncertain(gpu, bytes);
        (void)table_remove(&pieces, piece.key, &old);
    }
    pthread_mutex_unlock(&mutex);
    return recorded;
}

bool physical_import(CUmemGenericAllocationHandle handle) {
    entry_t entry;
    pthread_mutex_lock(&mutex);
    bool known = table_get(&handles, handle, &entry);
    if (known)
        reference_handle(handle, entry.owner);
    pthread_mutex_unlock(&mutex);
    return known;
}

void physical_retain(CUmemGenericAllocationHandle handle, uint64_t address) {
    entry_t mapping;
    pthread_mutex_lock(&mutex);
    if (table_containing(&mappings, address, &mapping))
        reference_handle(handle, mapping.owner);
    pthread_mutex_unlock(&mutex);
}

uint64_t physical_begin_release(CUmemGenericAllocationHandle handle) {
    entry_t entry;
    pthread_mutex_lock(&mutex);
    bool known = table_remove(&handles, handle, &entry);
    if (known && --entry.count > 0)
        put(&handles, &entry);
    if (known)
        begin_call(entry.owner);
    pthread_mutex_unlock(&mutex);
    return known ? entry.owner : PHYSICAL_NONE;
}

void physical_cancel_release(CUmemGenericAllocationHandle handle, uint64_t number) {
    pthread_mutex_lock(&mutex);
    reference_handle(handle, number);
    end_call(number, 1);
    pthread_mutex_unlock(&mutex);
}

uint64_t physical_reference(CUmemGenericAllocationHandle handle) {
    entry_t entry;
    pthread_mutex_lock(&mutex);
    bool known = table_get(&handles, handle, &entry);
    if (known)
        add_reference(entry.owner);
    pthread_mutex_unlock(&mutex);
    return known ? entry.owner : PHYSICAL_NONE;
}

void physical_unreference(uint64_t number) {
    pthread_mutex_lock(&mutex);
    drop_reference(number);
    pthread_mutex_unlock(&mutex);
}

void physical_end_release(uint64_t number) {
    pthread_mutex_lock(&mutex);
    end_call(number, 1);
    pthread_mutex_unlock(&mutex);
}

void physical_mark_exported(CUmemGenericAllocationHandle handle) {
    entry_t entry, piece;
    pthread_mutex_lock(&mutex);
    if (table_get(&handles, handle, &entry) && table_get(&pieces, entry.owner, &piece)) {
        piece.owner |= EXPORTED;
        put(&pieces, &piece);
    }
    pthread_mutex_unlock(&mutex);
}

/* A mapping that cannot be recorded keeps its memory charged until the process ends, which is the safe side. */
void physical_map(CUdeviceptr pointer, uint64_t bytes, uint64_t number) {
    entry_t mapping = {.key = pointer, .bytes = bytes, .owner = number};
    entry_t old;
    pthread_mutex_lock(&mutex);
    if (table_put(&mappings, &mapping, &old) && old.key != 0)
        drop_reference(old.owner);
    pthread_mutex_unlock(&mutex);
}

/* One call may unmap several consecutive mappings, but only whole ones. */
void physical_begin_unmap(CUdeviceptr pointer, uint64_t bytes) {
    entry_t mapping;
    pthread_mutex_lock(&mutex);
    CUdeviceptr end = pointer + bytes;
    while (pointer < end && table_get(&mappings, pointer, &mapping) && mapping.bytes > 0) {
        begin_call(mapping.owner);
        pointer += mapping.bytes;
    }
    pthread_mutex_unlock(&mutex);
}

void physical_end_unmap(CUdeviceptr pointer, uint64_t bytes, bool done) {
    entry_t mapping;
    pthread_mutex_lock(&mutex);
    CUdeviceptr end = pointer + bytes;
    while (pointer < end && table_get(&mappings, pointer, &mapping) && mapping.bytes > 0) {
        if (done)
            (void)table_remove(&mappings, pointer, &mapping);
        end_call(mapping.owner, done ? 1 : 0);
        pointer += mapping.bytes;
    }
    pthread_mutex_unlock(&mutex);
}

void physical_map_array(uint64_t array, uint64_t number) {
    entry_t entry = {.key = array ^ number << 48, .bytes = number, .owner = array};
    entry_t old;
    pthread_mutex_lock(&mutex);
    begin_call(number); /* its end is not reported, so it no longer counts as certain */
    /* If two pairs happen to share a key, the first stays charged until the process ends. */
    if (table_put(&arrays, &entry, &old) && old.key != 0 && old.owner == array && old.bytes == number)
        drop_reference(number);
    pthread_mutex_unlock(&mutex);
}

void physical_drop_array(uint64_t array) {
    entry_t entry;
    size_t from = 0;
    pthread_mutex_lock(&mutex);
    while (table_remove_owned(&arrays, array, &entry, &from))
        drop_reference(entry.bytes);
    pthread_mutex_unlock(&mutex);
}
