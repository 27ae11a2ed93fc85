#define _GNU_SOURCE
#include "share/share.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "link/arbiter.h"
#include "share/quota.h"

#define RACE_PAUSE_NS 100000ull
#define MAX_RECLAIMS 8 /* for one charge */

static struct {
    ino_t ledger_inode;
    unsigned slot;
    const limits_page_t *limits;
    ledger_page_t *ledgers;
    unsigned gpu_count;
    unsigned certain_slot;
    wire_isolation_t isolation;
} share;

/* The charge that was refused to this thread last. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
    uint32_t gpu;
    uint64_t bytes;
} refused;

void share_unmap(void) {
    if (share.limits != NULL)
        munmap((void *)share.limits, PAGE_SIZE);
    if (share.ledgers != NULL)
        munmap(share.ledgers, share.gpu_count * sizeof *share.ledgers);
    share.limits = NULL;
    share.ledgers = NULL;
}

static void share_after_fork(void) {
    share_unmap();
    memset(&share, 0, sizeof share);
}
FORK_ON_CHILD(share_after_fork)

static ino_t inode_of(int descriptor) {
    struct stat status; /* a system call, because glibc's fstat got a new symbol version in 2.33 */
    return syscall(SYS_fstat, descriptor, &status) == 0 ? status.st_ino : 0;
}

bool share_map(const wire_welcome_result_t *welcome) {
    share.slot = welcome->slot;
    share.gpu_count = welcome->gpu_count;
    share.ledger_inode = inode_of(welcome->ledger);
    share.isolation = welcome->isolation;
    void *limits = mmap(NULL, PAGE_SIZE, PROT_READ, MAP_SHARED, welcome->limits, 0);
    size_t ledgers_bytes = welcome->gpu_count * sizeof(ledger_page_t);
    void *ledgers = welcome->gpu_count > 0
                        ? mmap(NULL, ledgers_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, welcome->ledger, 0)
                        : NULL;
    close(welcome->limits);
    close(welcome->ledger);
    share.limits = limits != MAP_FAILED ? limits : NULL;
    share.ledgers = ledgers != MAP_FAILED ? ledgers : NULL;
    share.certain_slot = limits != MAP_FAILED ? share.limits->certain_slot : 0;
    return limits != MAP_FAILED && ledgers != MAP_FAILED;
}

bool share_is_mapped(void) {
    return __atomic_load_n(&share.limits, __ATOMIC_ACQUIRE) != NULL;
}

uint32_t share_find_gpu(const uint8_t uuid[16]) {
    for (uint32_t gpu = 0; gpu < share.gpu_count; gpu++) {
        if (memcmp(share.limits->gpu[gpu].uuid, uuid, 16) == 0)
            return gpu;
    }
    return SHARE_NO_GPU;
}

static quota_t quota_of(uint32_t gpu) {
    return (quota_t){.ledger = &share.ledgers[gpu],
                     .limits = __atomic_load_n(&share.limits, __ATOMIC_ACQUIRE),
                     .gpu = gpu,
                     .slot = share.slot,
                     .certain_slot = share.certain_slot};
}

/* The mapped ledger stays. The limits are a new page, because no arbiter can write the old one any more. The old
 * page stays mapped: another thread may be reading it. */
bool share_rejoin(const wire_welcome_result_t *welcome) {
    bool same = welcome->slot == share.slot && welcome->gpu_count == share.gpu_count &&
                inode_of(welcome->ledger) == share.ledger_inode;
    void *limits = same ? mmap(NULL, PAGE_SIZE, PROT_READ, MAP_SHARED, welcome->limits, 0) : MAP_FAILED;
    close(welcome->limits);
    close(welcome->ledger);
    if (limits != MAP_FAILED)
        __atomic_store_n(&share.limits, limits, __ATOMIC_SEQ_CST);
    return limits != MAP_FAILED;
}

unsigned share_request_percent(uint32_t gpu) {
    const limits_page_t *limits = __atomic_load_n(&share.limits, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&limits->gpu[gpu].request_percent, __ATOMIC_RELAXED);
}

bool share_turn(uint32_t gpu, uint64_t period_ns, uint64_t *begin_ns_p, uint64_t *length_ns_p) {
    const limits_record_t *limits = &__atomic_load_n(&share.limits, __ATOMIC_ACQUIRE)->gpu[gpu];
    *begin_ns_p = __atomic_load_n(&limits->turn_begin_permille, __ATOMIC_RELAXED) * period_ns / 1000;
    *length_ns_p = __atomic_load_n(&limits->turn_permille, __ATOMIC_RELAXED) * period_ns / 1000;
    return *length_ns_p > 0;
}

const wire_isolation_t *share_isolation(void) {
    return &share.isolation;
}

uint32_t share_gpu_count(void) {
    return share.gpu_count;
}

/* If the limits page is replaced during a charge, the charge is repeated, because the old page may allow more. The
 * new arbiter hears of the switch only afterwards, and only then reads the ledger. */
static bool charge(uint32_t gpu, uint64_t bytes) {
    for (;;) {
        quota_t quota = quota_of(gpu);
        bool charged = quota_charge(&quota, bytes);
        if (__atomic_load_n(&share.limits, __ATOMIC_SEQ_CST) == quota.limits) {
            refused.gpu = gpu;
            refused.bytes = charged ? 0 : bytes;
            return charged;
        }
        if (charged)
            quota_refund(&quota, bytes);
    }
}

bool share_try_charge(uint32_t gpu, uint64_t bytes) {
    return charge(gpu, bytes);
}

/* Two processes near the limit may have seen each other's attempt, so they retry at different times. */
static void back_off(void) {
    pause_ns(RACE_PAUSE_NS * (1 + share.slot % 8));
}

static void reclaim(void) {
    bool may_burst = refused.bytes > 0 && share_most_bytes(refused.gpu) > share_limit_bytes(refused.gpu);
    arbiter_reclaim(refused.gpu, may_burst ? refused.bytes : 0);
}

bool share_charge(uint32_t gpu, uint64_t bytes) {
    if (charge(gpu, bytes))
        return true;
    if (bytes > share_most_bytes(gpu))
        return false;
    back_off();
    uint64_t limit_bytes = share_limit_bytes(gpu);
    if (charge(gpu, bytes))
        return true;
    /* Lent memory belongs to the whole container, so another charge may use it first. */
    for (unsigned reclaims = 0; reclaims < MAX_RECLAIMS; reclaims++) {
        uint64_t before_bytes = limit_bytes;
        reclaim();
        limit_bytes = share_limit_bytes(gpu);
        if (charge(gpu, bytes))
            return true;
        if (limit_bytes <= before_bytes)
            return false;
    }
    return false;
}

void share_reclaim(void) {
    back_off();
    reclaim();
}

void share_refund(uint32_t gpu, uint64_t bytes) {
    quota_t quota = quota_of(gpu);
    quota_refund(&quota, bytes);
}

bool share_certain(uint32_t gpu, uint64_t bytes) {
    quota_t quota = quota_of(gpu);
    return quota_certain(&quota, bytes);
}

void share_uncertain(uint32_t gpu, uint64_t bytes) {
    quota_t quota = quota_of(gpu);
    quota_uncertain(&quota, bytes);
}

bool share_tracks_certain(void) {
    const limits_page_t *limits = __atomic_load_n(&share.limits, __ATOMIC_ACQUIRE);
    return share.certain_slot != 0 && limits->certain_slot == share.certain_slot;
}

uint64_t share_limit_bytes(uint32_t gpu) {
    quota_t quota = quota_of(gpu);
    return quota_limit_bytes(&quota);
}

uint64_t share_burst_bytes(uint32_t gpu) {
    quota_t quota = quota_of(gpu);
    return quota_burst_bytes(&quota);
}

uint64_t share_most_bytes(uint32_t gpu) {
    uint64_t limit_bytes = share_limit_bytes(gpu);
    uint64_t burst_bytes = share_burst_bytes(gpu);
    return burst_bytes > limit_bytes ? burst_bytes : limit_bytes;
}

uint64_t share_used_bytes(uint32_t gpu) {
    quota_t quota = quota_of(gpu);
    return quota_used_bytes(&quota);
}

uint64_t share_context_bytes(uint32_t gpu) {
    quota_t quota = quota_of(gpu);
    return __atomic_load_n(&quota.limits->gpu[gpu].context_bytes, __ATOMIC_SEQ_CST);
}
