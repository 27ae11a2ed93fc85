#define _GNU_SOURCE
#include "state/slots.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/clock.h"
#include "state/cgroup.h"
#include "state/limits.h"
#include "state/locks.h"
#include "state/shared.h"

static void sweep(gpu_t *gpu) {
    unsigned high = gpu->image->slots_high;
    for (unsigned i = 0; i < high; i++) {
        pid_t holder;
        image_slot_t *slot = &gpu->image->slots[i];
        if ((int)i != gpu->slot && slot->pid != 0 && !slot_is_held(gpu, i, &holder))
            *slot = (image_slot_t){0};
    }
    high = gpu->image->orphans_high;
    for (unsigned i = 0; i < high; i++) {
        image_orphan_t *orphan = &gpu->image->orphans[i];
        if (orphan->memory != 0 && !shared_is_open(orphan->memory))
            *orphan = (image_orphan_t){0};
    }
}

/* Grow the file up to the queue of this slot. */
static bool make_room(const gpu_t *gpu, unsigned index) {
    struct stat status;
    off_t bytes = (off_t)(sizeof(image_t) + (index + 1) * sizeof(image_queue_t));
    return fstat(gpu->descriptor, &status) == 0 && (status.st_size >= bytes || ftruncate(gpu->descriptor, bytes) == 0);
}

static bool join(gpu_t *gpu) {
    if (gpu->slot >= 0)
        return true;
    if (!gpu_is_usable(gpu))
        return false;
    for (unsigned i = 0; i < IMAGE_SLOTS; i++) {
        pid_t holder;
        image_slot_t *slot = &gpu->image->slots[i];
        if (slot_is_held(gpu, i, &holder) || !slot_lock(gpu, i))
            continue;
        if (!make_room(gpu, i))
            return false;
        *slot = (image_slot_t){
            .pid = (uint64_t)getpid(),
            .start_ticks = own_start_ticks(),
            .instance = gpu->instance,
            .compute_instance = gpu->compute_instance,
            .mps = gpu->mps,
            .server = gpu->server,
            .partition = gpu->partition,
        };
        (void)cgroup_own(slot->cgroups, IMAGE_CGROUPS);
        if (gpu->image->slots_high < i + 1)
            gpu->image->slots_high = i + 1;
        gpu->slot = (int)i;
        return true;
    }
    return false;
}

bool slots_join(gpu_t *gpu) {
    gpu_lock_changes(gpu);
    bool joined = join(gpu);
    gpu_unlock_changes(gpu);
    return joined;
}

static bool is_in(const image_slot_t *slot, uint32_t instance, uint32_t compute) {
    return (instance == 0 || slot->instance == instance) && (compute == 0 || slot->compute_instance == compute);
}

bool slots_in_use(const gpu_t *gpu, uint32_t instance, uint32_t compute) {
    unsigned high = gpu->image->slots_high;
    for (unsigned i = 0; i < high; i++) {
        pid_t holder;
        if (is_in(&gpu->image->slots[i], instance, compute) && ((int)i == gpu->slot || slot_is_held(gpu, i, &holder)))
            return true;
    }
    return false;
}

/* Whether this process was an MPS client that has been ended. Its memory is free already. */
static bool has_ended(const gpu_t *gpu) {
    return gpu->image->slots[gpu->slot].ended != 0;
}

static bool fits(const gpu_t *gpu, uint64_t bytes) {
    if (has_ended(gpu))
        return false;
    if (gpu->limit_bytes != 0 && gpu->image->slots[gpu->slot].memory_bytes + bytes > gpu->limit_bytes)
        return false;
    uint64_t left_bytes = gpu_memory_bytes(gpu);
    unsigned high = gpu->image->slots_high;
    for (unsigned i = 0; i < high; i++) {
        if (!is_in(&gpu->image->slots[i], gpu->instance, 0))
            continue;
        uint64_t held_bytes = gpu->image->slots[i].memory_bytes;
        if (held_bytes > left_bytes)
            return false;
        left_bytes -= held_bytes;
    }
    high = gpu->image->orphans_high;
    for (unsigned i = 0; i < high; i++) {
        const image_orphan_t *orphan = &gpu->image->orphans[i];
        if (gpu->instance != 0 && orphan->instance != gpu->instance)
            continue;
        if (orphan->bytes > left_bytes)
            return false;
        left_bytes -= orphan->bytes;
    }
    return limits_allow(gpu, &gpu->image->slots[gpu->slot], bytes, left_bytes);
}

bool slots_charge(gpu_t *gpu, uint64_t bytes) {
    gpu_lock_changes(gpu);
    bool granted = join(gpu) && fits(gpu, bytes);
    if (!granted && gpu->slot >= 0 && !has_ended(gpu)) {
        sweep(gpu);
        granted = fits(gpu, bytes);
    }
    if (granted)
        gpu->image->slots[gpu->slot].memory_bytes += bytes;
    gpu_unlock_changes(gpu);
    return granted;
}

void slots_refund(gpu_t *gpu, uint64_t bytes) {
    gpu_lock_changes(gpu);
    if (gpu->slot >= 0 && !has_ended(gpu))
        gpu->image->slots[gpu->slot].memory_bytes -= bytes;
    gpu_unlock_changes(gpu);
}

/* If the table is full, the memory keeps counting for its creator. */
static bool record_orphan(image_t *image, const image_orphan_t *orphan) {
    for (unsigned i = 0; i < IMAGE_ORPHANS; i++) {
        if (image->orphans[i].memory != 0)
            continue;
        image->orphans[i] = *orphan;
        if (image->orphans_high < i + 1)
            image->orphans_high = i + 1;
        return true;
    }
    return false;
}

void slots_abandon(gpu_t *gpu, uint64_t bytes, uint64_t memory) {
    const image_orphan_t orphan = {.memory = memory, .bytes = bytes, .instance = gpu->instance};
    gpu_lock_changes(gpu);
    if (gpu->slot >= 0 && !has_ended(gpu) && (!shared_is_open(memory) || record_orphan(gpu->image, &orphan)))
        gpu->image->slots[gpu->slot].memory_bytes -= bytes;
    gpu_unlock_changes(gpu);
}

void slots_sweep(gpu_t *gpu) {
    gpu_lock_changes(gpu);
    sweep(gpu);
    gpu_unlock_changes(gpu);
}

/* Readers take no lock: releasing it would also release the lock that the other library in the same process may
 * hold. Instead they read again if something changed meanwhile, because memory that moves between processes would
 * count twice. */
#define STUCK_NS 20000000u /* without progress for so long, the process that was changing it is dead */
#define MAX_READINGS 1000u

typedef struct {
    uint32_t changes;
    unsigned times;
} reading_t;

static void read_begin(const gpu_t *gpu, reading_t *reading) {
    uint64_t since_ns = clock_now_ns();
    reading->changes = gpu->image->changes;
    while (reading->changes % 2 != 0 && clock_now_ns() - since_ns < STUCK_NS) {
        sched_yield();
        const uint32_t changes = gpu->image->changes;
        if (changes != reading->changes)
            since_ns = clock_now_ns();
        reading->changes = changes;
    }
}

static bool has_changed(const gpu_t *gpu, reading_t *reading) {
    return gpu->image->changes != reading->changes && ++reading->times < MAX_READINGS;
}

static uint64_t sum_held(const gpu_t *gpu, uint64_t cgroup) {
    uint64_t used_bytes = 0;
    unsigned high = gpu->image->slots_high;
    for (unsigned i = 0; i < high; i++) {
        pid_t holder;
        const image_slot_t *slot = &gpu->image->slots[i];
        if (is_in(slot, gpu->instance, 0) && (cgroup == 0 || slot_is_in_cgroup(slot, cgroup)) &&
            ((int)i == gpu->slot || slot_is_held(gpu, i, &holder)))
            used_bytes += slot->memory_bytes;
    }
    high = cgroup == 0 ? gpu->image->orphans_high : 0;
    for (unsigned i = 0; i < high; i++) {
        const image_orphan_t *orphan = &gpu->image->orphans[i];
        if (orphan->memory != 0 && (gpu->instance == 0 || orphan->instance == gpu->instance) &&
            shared_is_open(orphan->memory))
            used_bytes += orphan->bytes;
    }
    return used_bytes;
}

uint64_t slots_used_bytes(const gpu_t *gpu) {
    return slots_used_bytes_in(gpu, 0);
}

uint64_t slots_used_bytes_in(const gpu_t *gpu, uint64_t cgroup) {
    reading_t reading = {0};
    uint64_t used_bytes;
    do {
        read_begin(gpu, &reading);
        used_bytes = sum_held(gpu, cgroup);
    } while (has_changed(gpu, &reading));
    return used_bytes;
}

static size_t list_holders(const gpu_t *gpu, slot_holder_t *holders, size_t capacity) {
    size_t count = 0;
    unsigned high = gpu->image->slots_high;
    for (unsigned i = 0; i < high; i++) {
        pid_t holder = getpid();
        const image_slot_t *slot = &gpu->image->slots[i];
        if (!is_in(slot, gpu->instance, gpu->compute_instance) ||
            ((int)i != gpu->slot && !slot_is_held(gpu, i, &holder)))
            continue;
        if (count < capacity)
            holders[count] = (slot_holder_t){.pid = (uint32_t)holder,
                                             .memory_bytes = slot->memory_bytes,
                                             .instance = (uint32_t)slot->instance,
                                             .compute_instance = (uint32_t)slot->compute_instance,
                                             .slot = i,
                                             .mps = (unsigned)slot->mps,
                                             .partition = (unsigned)slot->partition};
        count++;
    }
    return count;
}

size_t slots_holders(const gpu_t *gpu, slot_holder_t *holders, size_t capacity) {
    reading_t reading = {0};
    size_t count;
    do {
        read_begin(gpu, &reading);
        count = list_holders(gpu, holders, capacity);
    } while (has_changed(gpu, &reading));
    return count;
}

void slots_memory_info(const gpu_t *gpu, uint64_t *total_bytes_p, uint64_t *used_bytes_p) {
    uint64_t cgroups[IMAGE_CGROUPS];
    *total_bytes_p = gpu_memory_bytes(gpu);
    *used_bytes_p = slots_used_bytes(gpu);
    size_t count = gpu->image->limits_high > 0 && !gpu->image->mig_mode ? cgroup_own(cgroups, IMAGE_CGROUPS) : 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t soft_bytes, hard_bytes;
        if (!limits_get(gpu, cgroups[i], &soft_bytes, &hard_bytes) || hard_bytes >= *total_bytes_p)
            continue;
        *total_bytes_p = hard_bytes;
        *used_bytes_p = slots_used_bytes_in(gpu, cgroups[i]);
    }
    if (*used_bytes_p > *total_bytes_p) /* the limit was set later */
        *used_bytes_p = *total_bytes_p;
}
