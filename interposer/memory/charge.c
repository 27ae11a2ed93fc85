#include "memory/charge.h"

#include <inttypes.h>

#include "base/fork.h"
#include "base/report.h"
#include "base/table.h"
#include "cuda/device.h"
#include "driver/driver.h"
#include "memory/cache.h"
#include "memory/lingering.h"
#include "share/share.h"

/* Contexts have even addresses. */
#define DETACHED_BIT 1u

/* Values of an entry's `count`: whether the driver certainly holds its bytes, and whether it did before a call that
 * may end their context. */
enum { UNCERTAIN, CERTAIN, WAS_CERTAIN };

static table_t allocations = TABLE_INITIALIZER;
static uint64_t detachments;
static bool reported;

static void charge_after_fork(void) {
    table_clear(&allocations);
}
FORK_ON_CHILD(charge_after_fork)

static uint64_t mebibytes(uint64_t bytes) {
    return (bytes >> 20) + ((bytes & ((1u << 20) - 1)) != 0);
}

/* Reports only once: allocators such as PyTorch's handle a refusal and retry often. */
CUresult charge_refused(uint32_t gpu, uint64_t bytes) {
    uint64_t limit_bytes = share_limit_bytes(gpu);
    uint64_t used_bytes = share_used_bytes(gpu);
    bool fits = used_bytes <= limit_bytes &&
                bytes <= limit_bytes - used_bytes; /* the GPU itself is full, or memory was freed meanwhile */
    uint64_t most_bytes = share_most_bytes(gpu);
    if (fits || __atomic_exchange_n(&reported, true, __ATOMIC_RELAXED))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (most_bytes > limit_bytes && used_bytes <= most_bytes && bytes <= most_bytes - used_bytes)
        report("%" PRIu64 " MiB refused: %" PRIu64 " of the container's %" PRIu64
               " MiB are in use, and the GPU has too little free to lend it more (gpushare.io/memory-limit)",
               mebibytes(bytes), mebibytes(used_bytes), mebibytes(limit_bytes));
    else if (share_burst_bytes(gpu) > 0)
        report("%" PRIu64 " MiB refused: %" PRIu64 " of the container's %" PRIu64
               " MiB are in use (gpushare.io/memory-limit)",
               mebibytes(bytes), mebibytes(used_bytes), mebibytes(most_bytes));
    else
        report("%" PRIu64 " MiB refused: %" PRIu64 " of the container's %" PRIu64
               " MiB are in use (gpushare.io/memory)",
               mebibytes(bytes), mebibytes(used_bytes), mebibytes(limit_bytes));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_silently(const place_t *place, uint64_t bytes) {
    if (place->gpu == SHARE_NO_GPU)
        return device_refusal();
    /* Zero bytes are allowed even if the driver's own memory has pushed the share over its limit. */
    if (bytes == 0 || share_charge(place->gpu, bytes))
        return CUDA_SUCCESS;
    if (bytes > share_most_bytes(place->gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* Before reporting out of memory, trim pools, as the driver does, and find out whether exported memory is gone. */
    if (cache_trim(place->gpu) && share_charge(place->gpu, bytes))
        return CUDA_SUCCESS;
    return lingering_refund(place->gpu) && share_charge(place->gpu, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_begin(const place_t *place, uint64_t bytes) {
    CUresult result = charge_silently(place, bytes);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? charge_refused(place->gpu, bytes) : result;
}

CUresult charge_current(place_t *place, uint64_t bytes) {
    CUresult result = device_place(place);
    return result == CUDA_SUCCESS ? charge_begin(place, bytes) : result;
}

/* Called before the driver is asked to free the entry's memory. */
static void clear_certain(entry_t *entry) {
    if (entry->count != CERTAIN)
        return;
    share_uncertain(entry->gpu, entry->bytes);
    entry->count = WAS_CERTAIN;
}

/* The memory was not freed. */
static void restore_certain(entry_t *entry) {
    if (entry->count == WAS_CERTAIN)
        entry->count = share_certain(entry->gpu, entry->bytes) ? CERTAIN : UNCERTAIN;
}

bool charge_record(const place_t *place, uint64_t key, uint64_t bytes) {
    entry_t entry = {.key = key, .bytes = bytes, .owner = (uint64_t)(uintptr_t)place->context, .gpu = place->gpu};
    entry_t old;
    entry.count = !place->deferred && share_certain(place->gpu, bytes) ? CERTAIN : UNCERTAIN;
    bool recorded = table_put(&allocations, &entry, &old);
    if (!recorded)
        clear_certain(&entry);
    /* The driver reuses an address only after the old memory is gone, here in a way that no hook saw. */
    if (recorded && old.key != 0) {
        clear_certain(&old);
        share_refund(old.gpu, old.bytes);
    }
    return recorded;
}

CUresult charge_end(const place_t *place, CUresult result, CUdeviceptr pointer, uint64_t bytes) {
    if (result != CUDA_SUCCESS) {
        share_refund(place->gpu, bytes);
        return result;
    }
    if (charge_record(place, pointer, bytes))
        return CUDA_SUCCESS;
    if (REAL(cuMemFree_v2)(pointer) == CUDA_SUCCESS)
        share_refund(place->gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

charge_t charge_begin_free(CUdeviceptr pointer) {
    entry_t entry;
    if (!table_remove(&allocations, pointer, &entry))
        return (charge_t){0};
    clear_certain(&entry);
    return (charge_t){.pointer = pointer,
                      .bytes = entry.bytes,
                      .owner = entry.owner,
                      .gpu = entry.gpu,
                      .certain = entry.count == WAS_CERTAIN};
}

CUresult charge_end_free(const charge_t *charge, CUresult result) {
    if (charge->pointer == 0)
        return result;
    if (result == CUDA_SUCCESS) {
        share_refund(charge->gpu, charge->bytes);
        return result;
    }
    entry_t entry = {.key = charge->pointer,
                     .bytes = charge->bytes,
                     .owner = charge->owner,
                     .gpu = charge->gpu,
                     .count = charge->certain ? WAS_CERTAIN : UNCERTAIN};
    entry_t old;
    restore_certain(&entry);
    (void)table_put(&allocations, &entry, &old); /* if this fails, the bytes stay charged: the safe side */
    return result;
}

uint64_t charge_detach(CUcontext context) {
    uint64_t token = (__atomic_add_fetch(&detachments, 1, __ATOMIC_RELAXED) << 1) | DETACHED_BIT;
    if (context != NULL)
        table_change_owner(&allocations, (uint64_t)(uintptr_t)context, token, clear_certain);
    return token;
}

void charge_drop(uint64_t token) {
    entry_t entry;
    size_t from = 0;
    while (table_remove_owned(&allocations, token, &entry, &from))
        share_refund(entry.gpu, entry.bytes);
}

void charge_reattach(uint64_t token, CUcontext context) {
    table_change_owner(&allocations, token, (uint64_t)(uintptr_t)context, restore_certain);
}
