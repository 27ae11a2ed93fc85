#include "memory/charge.h"

#include <inttypes.h>

#include "base/fork.h"
#include "base/report.h"
#include "base/table.h"
#include "cuda/device.h"
#include "driver/driver.h"
#include "memory/doubt.h"
#include "memory/keeper.h"
#include "share/share.h"

/* No context has an odd address. */
#define ASIDE_MARK 1u

/* An entry's count: whether the driver has its bytes for certain, and whether they were certain before it was asked to
 * end their context. */
enum { LATER, CERTAIN, WAS_CERTAIN };

static table_t allocations = TABLE_INITIALIZER;
static uint64_t asides;
static bool reported;

static void charge_after_fork(void) {
    table_forget(&allocations);
}
FORK_ON_CHILD(charge_after_fork)

static uint64_t mebibytes(uint64_t bytes) {
    return (bytes >> 20) + ((bytes & ((1u << 20) - 1)) != 0);
}

/* Once: allocators such as PyTorch's ask again and again for what they are refused, and go on. */
CUresult charge_refused(uint32_t gpu, uint64_t bytes) {
    uint64_t limit_bytes = share_limit_bytes(gpu);
    uint64_t used_bytes = share_used_bytes(gpu);
    bool fits = used_bytes <= limit_bytes && bytes <= limit_bytes - used_bytes; /* the driver has none, or has again */
    if (!fits && !__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED))
        report("%" PRIu64 " MiB refused: %" PRIu64 " of the container's %" PRIu64
               " MiB are in use (gpushare.io/memory)",
               mebibytes(bytes), mebibytes(used_bytes), mebibytes(limit_bytes));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_quietly(const place_t *place, uint64_t bytes) {
    if (place->gpu == SHARE_NO_GPU)
        return device_refusal();
    /* Nothing more can be had also by a share that the driver's own memory has pushed beyond its limit. */
    if (bytes == 0 || share_charge(place->gpu, bytes))
        return CUDA_SUCCESS;
    if (bytes > share_limit_bytes(place->gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* What pools keep is taken from them before a program is told that there is nothing, as the driver does it; and
     * what was shared may be gone by now. */
    if (keeper_give_back(place->gpu) && share_charge(place->gpu, bytes))
        return CUDA_SUCCESS;
    return doubt_ask(place->gpu) && share_charge(place->gpu, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_begin(const place_t *place, uint64_t bytes) {
    CUresult result = charge_quietly(place, bytes);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? charge_refused(place->gpu, bytes) : result;
}

CUresult charge_here(place_t *place, uint64_t bytes) {
    CUresult result = device_place(place);
    return result == CUDA_SUCCESS ? charge_begin(place, bytes) : result;
}

/* Before the driver is asked to free it. */
static void unsettle(entry_t *entry) {
    if (entry->count != CERTAIN)
        return;
    share_uncertain(entry->gpu, entry->bytes);
    entry->count = WAS_CERTAIN;
}

/* It was not freed. */
static void settle_again(entry_t *entry) {
    if (entry->count == WAS_CERTAIN)
        entry->count = share_certain(entry->gpu, entry->bytes) ? CERTAIN : LATER;
}

bool charge_note(const place_t *place, uint64_t key, uint64_t bytes) {
    entry_t entry = {.key = key, .bytes = bytes, .owner = (uint64_t)(uintptr_t)place->context, .gpu = place->gpu};
    entry_t old;
    entry.count = !place->later && share_certain(place->gpu, bytes) ? CERTAIN : LATER;
    bool noted = table_put(&allocations, &entry, &old);
    if (!noted)
        unsettle(&entry);
    /* The driver gives an address twice only when what was there is gone, by a way that no hook saw. */
    if (noted && old.key != 0) {
        unsettle(&old);
        share_refund(old.gpu, old.bytes);
    }
    return noted;
}

CUresult charge_end(const place_t *place, CUresult result, CUdeviceptr pointer, uint64_t bytes) {
    if (result != CUDA_SUCCESS) {
        share_refund(place->gpu, bytes);
        return result;
    }
    if (charge_note(place, pointer, bytes))
        return CUDA_SUCCESS;
    if (REAL(cuMemFree_v2)(pointer) == CUDA_SUCCESS)
        share_refund(place->gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

charge_t charge_take(CUdeviceptr pointer) {
    entry_t entry;
    if (!table_take(&allocations, pointer, &entry))
        return (charge_t){0};
    unsettle(&entry);
    return (charge_t){.pointer = pointer,
                      .bytes = entry.bytes,
                      .owner = entry.owner,
                      .gpu = entry.gpu,
                      .certain = entry.count == WAS_CERTAIN};
}

CUresult charge_return(const charge_t *charge, CUresult result) {
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
                     .count = charge->certain ? WAS_CERTAIN : LATER};
    entry_t old;
    settle_again(&entry);
    (void)table_put(&allocations, &entry, &old); /* should it fail, the bytes stay charged: the safe side */
    return result;
}

uint64_t charge_set_aside(CUcontext context) {
    uint64_t aside = (__atomic_add_fetch(&asides, 1, __ATOMIC_RELAXED) << 1) | ASIDE_MARK;
    if (context != NULL)
        table_rename_owner(&allocations, (uint64_t)(uintptr_t)context, aside, unsettle);
    return aside;
}

void charge_drop(uint64_t aside) {
    entry_t entry;
    size_t from = 0;
    while (table_take_owned(&allocations, aside, &entry, &from))
        share_refund(entry.gpu, entry.bytes);
}

void charge_restore(uint64_t aside, CUcontext context) {
    table_rename_owner(&allocations, aside, (uint64_t)(uintptr_t)context, settle_again);
}
