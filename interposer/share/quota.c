#include "share/quota.h"

#include <stddef.h>

#define CERTAIN_MASK ((1ull << CERTAIN_BITS) - 1)

uint64_t quota_limit_bytes(const quota_t *quota) {
    return __atomic_load_n(&quota->limits->gpu[quota->gpu].memory_bytes, __ATOMIC_SEQ_CST);
}

uint64_t quota_burst_bytes(const quota_t *quota) {
    return __atomic_load_n(&quota->limits->gpu[quota->gpu].burst_bytes, __ATOMIC_SEQ_CST);
}

/* Returns false on overflow. */
static bool sum(const quota_t *quota, uint64_t *used_bytes_p) {
    *used_bytes_p = __atomic_load_n(&quota->limits->gpu[quota->gpu].overhead_bytes, __ATOMIC_SEQ_CST);
    uint32_t count = __atomic_load_n(&quota->limits->slot_count, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < count && i < LEDGER_SLOTS; i++) {
        uint64_t slot_bytes = __atomic_load_n(&quota->ledger->slot_bytes[i], __ATOMIC_SEQ_CST);
        if (__builtin_add_overflow(*used_bytes_p, slot_bytes, used_bytes_p))
            return false;
    }
    return true;
}

uint64_t quota_used_bytes(const quota_t *quota) {
    uint64_t used_bytes;
    return sum(quota, &used_bytes) ? used_bytes : UINT64_MAX;
}

bool quota_charge(const quota_t *quota, uint64_t bytes) {
    uint64_t used_bytes;
    if (bytes > quota_limit_bytes(quota))
        return false;
    /* Not a plain addition: a slot that overflowed would look empty. */
    uint64_t *slot_bytes = &quota->ledger->slot_bytes[quota->slot];
    uint64_t held_bytes = __atomic_load_n(slot_bytes, __ATOMIC_SEQ_CST);
    do {
        if (bytes > UINT64_MAX - held_bytes)
            return false;
    } while (!__atomic_compare_exchange_n(slot_bytes, &held_bytes, held_bytes + bytes, true, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    if (sum(quota, &used_bytes) && used_bytes <= quota_limit_bytes(quota))
        return true;
    quota_refund(quota, bytes);
    return false;
}

static uint64_t *certain_word(const quota_t *quota) {
    bool room = quota->certain_slot != 0 && quota->slot < quota->certain_slot &&
                quota->slot + quota->certain_slot < LEDGER_SLOTS;
    return room ? &quota->ledger->slot_bytes[quota->slot + quota->certain_slot] : NULL;
}

bool quota_certain(const quota_t *quota, uint64_t bytes) {
    uint64_t *word = certain_word(quota);
    if (word != NULL)
        (void)__atomic_fetch_add(word, bytes, __ATOMIC_SEQ_CST);
    return word != NULL;
}

/* One atomic step lowers the bytes and counts the decrease. If the agent reads the same count before and after its
 * query of the driver, the bytes that it read before were there all the time. */
void quota_uncertain(const quota_t *quota, uint64_t bytes) {
    uint64_t *word = certain_word(quota);
    if (word == NULL)
        return;
    uint64_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    uint64_t now;
    do {
        /* An older agent may have cleared this word. Then too few bytes count as certain, which is the safe side. */
        uint64_t certain_bytes = old & CERTAIN_MASK;
        now = old + (1ull << CERTAIN_BITS) - (bytes < certain_bytes ? bytes : certain_bytes);
    } while (!__atomic_compare_exchange_n(word, &old, now, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}

void quota_refund(const quota_t *quota, uint64_t bytes) {
    (void)__atomic_fetch_sub(&quota->ledger->slot_bytes[quota->slot], bytes, __ATOMIC_SEQ_CST);
}
