#define _GNU_SOURCE
#include "slots.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cgroup.h"
#include "limits.h"
#include "mig.h"
#include "shared.h"
#include "timeline.h"

/* Locks lie beyond the file's end, where no data can be confused with them. */
#define LOCK_QUEUES ((off_t)1 << 28)
#define QUEUE_LOCKS 8u
#define LOCK_PAUSE_NS 20000
#define LOCK_CHANGES ((off_t)1 << 29)
#define LOCK_SLOTS ((off_t)1 << 30)

static bool lock_byte(int descriptor, int command, short type, off_t byte, pid_t *holder_p) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do {
        result = fcntl(descriptor, command, &lock);
        /* Two threads of a process count as one that waits: what looks like a deadlock ends by itself. */
    } while (result != 0 && (errno == EINTR || errno == EDEADLK));
    if (holder_p != NULL)
        *holder_p = lock.l_pid;
    return command == F_GETLK ? result == 0 && lock.l_type != F_UNLCK : result == 0;
}

/* The counter is odd during a change. A process that was killed in one left it odd; the next one moves on from there.
 */
void slots_change_begin(gpu_t *gpu) {
    pthread_mutex_lock(&gpu->mutex);
    (void)lock_byte(gpu->descriptor, F_SETLKW, F_WRLCK, LOCK_CHANGES, NULL);
    gpu->image->changes += gpu->image->changes % 2 == 0 ? 1 : 2;
}

void slots_change_end(gpu_t *gpu) {
    gpu->image->changes += 1;
    (void)lock_byte(gpu->descriptor, F_SETLK, F_UNLCK, LOCK_CHANGES, NULL);
    pthread_mutex_unlock(&gpu->mutex);
}

/* Field 22 of /proc/self/stat, counted after the command's closing bracket; 0 where there is no /proc. */
static uint64_t own_start_ticks(void) {
    char line[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    if (file == NULL)
        return 0;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = '\0';
    const char *rest = strrchr(line, ')');
    unsigned long long ticks = 0;
    if (rest != NULL)
        (void)sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                     &ticks);
    return ticks;
}

/* F_GETLK never reports the asking process's own locks, so a process knows its own slot by what is written in it. */
static bool slot_is_own(const image_slot_t *slot) {
    return slot->pid == (uint64_t)getpid() && slot->start_ticks == own_start_ticks();
}

static bool slot_is_held(const gpu_t *gpu, unsigned index, pid_t *holder_p) {
    const image_slot_t *slot = &gpu->image->slots[index];
    if (slot->pid == 0)
        return false;
    if (lock_byte(gpu->descriptor, F_GETLK, F_WRLCK, LOCK_SLOTS + index, holder_p))
        return true;
    *holder_p = getpid();
    return slot_is_own(slot);
}

static bool is_stopped(pid_t pid) {
    char path[64], state;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    if (fscanf(file, "%*[^)]) %c", &state) != 1)
        state = '?';
    fclose(file);
    return state == 'T' || state == 't';
}

/* A process that was stopped with the lock does not stop the GPU: the others go by the next lock until it goes on. */
void slots_queues_begin(gpu_t *gpu) {
    const struct timespec moment = {.tv_nsec = LOCK_PAUSE_NS};
    pthread_mutex_lock(&gpu->queues_mutex);
    gpu->queues_lock = 0;
    while (!lock_byte(gpu->descriptor, F_SETLK, F_WRLCK, LOCK_QUEUES + gpu->queues_lock, NULL)) {
        pid_t holder = 0;
        bool held = lock_byte(gpu->descriptor, F_GETLK, F_WRLCK, LOCK_QUEUES + gpu->queues_lock, &holder);
        if (held && holder > 0 && is_stopped(holder))
            gpu->queues_lock = (gpu->queues_lock + 1) % QUEUE_LOCKS;
        else if (held)
            nanosleep(&moment, NULL);
    }
}

void slots_queues_end(gpu_t *gpu) {
    (void)lock_byte(gpu->descriptor, F_SETLK, F_UNLCK, LOCK_QUEUES + gpu->queues_lock, NULL);
    pthread_mutex_unlock(&gpu->queues_mutex);
}

bool slots_is_alive(const gpu_t *gpu, unsigned index, uint64_t pid, uint64_t start_ticks) {
    const image_slot_t *slot = &gpu->image->slots[index];
    pid_t holder;
    return slot->pid == pid && slot->start_ticks == start_ticks && slot_is_held(gpu, index, &holder);
}

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
        if (orphan->memory != 0 && !shared_is_had(orphan->memory))
            *orphan = (image_orphan_t){0};
    }
}

/* The file grows with the processes that use it. */
static bool make_room(const gpu_t *gpu, unsigned index) {
    struct stat status;
    off_t bytes = (off_t)(sizeof(image_t) + (index + 1) * sizeof(image_queue_t));
    return fstat(gpu->descriptor, &status) == 0 && (status.st_size >= bytes || ftruncate(gpu->descriptor, bytes) == 0);
}

static bool join(gpu_t *gpu) {
    if (gpu->slot >= 0)
        return true;
    if (!mig_usable(gpu))
        return false;
    for (unsigned i = 0; i < IMAGE_SLOTS; i++) {
        pid_t holder;
        image_slot_t *slot = &gpu->image->slots[i];
        if (slot_is_held(gpu, i, &holder) || !lock_byte(gpu->descriptor, F_SETLK, F_WRLCK, LOCK_SLOTS + i, NULL))
            continue;
        if (!make_room(gpu, i))
            return false;
        *slot = (image_slot_t){
            .pid = (uint64_t)getpid(),
            .start_ticks = own_start_ticks(),
            .instance = gpu->instance,
            .part = gpu->part,
            .mps = gpu->mps,
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
    slots_change_begin(gpu);
    bool joined = join(gpu);
    slots_change_end(gpu);
    return joined;
}

static bool is_in(const image_slot_t *slot, uint32_t instance, uint32_t part) {
    return (instance == 0 || slot->instance == instance) && (part == 0 || slot->part == part);
}

bool slots_in_use(const gpu_t *gpu, uint32_t instance, uint32_t part) {
    unsigned high = gpu->image->slots_high;
    for (unsigned i = 0; i < high; i++) {
        pid_t holder;
        if (is_in(&gpu->image->slots[i], instance, part) && ((int)i == gpu->slot || slot_is_held(gpu, i, &holder)))
            return true;
    }
    return false;
}

static bool fits(const gpu_t *gpu, uint64_t bytes) {
    if (gpu->limit_bytes != 0 && gpu->image->slots[gpu->slot].memory_bytes + bytes > gpu->limit_bytes)
        return false;
    uint64_t left_bytes = mig_memory_bytes(gpu);
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
    slots_change_begin(gpu);
    bool granted = join(gpu) && fits(gpu, bytes);
    if (!granted && gpu->slot >= 0) {
        sweep(gpu);
        granted = fits(gpu, bytes);
    }
    if (granted)
        gpu->image->slots[gpu->slot].memory_bytes += bytes;
    slots_change_end(gpu);
    return granted;
}

void slots_refund(gpu_t *gpu, uint64_t bytes) {
    slots_change_begin(gpu);
    if (gpu->slot >= 0)
        gpu->image->slots[gpu->slot].memory_bytes -= bytes;
    slots_change_end(gpu);
}

/* Where there is no room to note it, it stays its maker's. */
static bool note_orphan(image_t *image, const image_orphan_t *orphan) {
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
    slots_change_begin(gpu);
    if (gpu->slot >= 0 && (!shared_is_had(memory) || note_orphan(gpu->image, &orphan)))
        gpu->image->slots[gpu->slot].memory_bytes -= bytes;
    slots_change_end(gpu);
}

void slots_sweep(gpu_t *gpu) {
    slots_change_begin(gpu);
    sweep(gpu);
    slots_change_end(gpu);
}

/* Readers take no lock, since taking one in this library would release the other's in the same process. They look again
 * if anything changed meanwhile, or memory that moved from one process to another would count twice. */
#define STUCK_NS 20000000u /* in which nothing goes on: who was changing it is dead */
#define MOST_READINGS 1000u

typedef struct {
    uint32_t changes;
    unsigned times;
} reading_t;

static void read_begin(const gpu_t *gpu, reading_t *reading) {
    uint64_t since_ns = timeline_now_ns();
    reading->changes = gpu->image->changes;
    while (reading->changes % 2 != 0 && timeline_now_ns() - since_ns < STUCK_NS) {
        sched_yield();
        const uint32_t changes = gpu->image->changes;
        if (changes != reading->changes)
            since_ns = timeline_now_ns();
        reading->changes = changes;
    }
}

static bool read_again(const gpu_t *gpu, reading_t *reading) {
    return gpu->image->changes != reading->changes && ++reading->times < MOST_READINGS;
}

bool slots_is_of(const image_slot_t *slot, uint64_t cgroup) {
    for (unsigned i = 0; i < IMAGE_CGROUPS && slot->cgroups[i] != 0; i++) {
        if (slot->cgroups[i] == cgroup)
            return true;
    }
    return false;
}

static uint64_t sum_held(const gpu_t *gpu, uint64_t cgroup) {
    uint64_t used_bytes = 0;
    unsigned high = gpu->image->slots_high;
    for (unsigned i = 0; i < high; i++) {
        pid_t holder;
        const image_slot_t *slot = &gpu->image->slots[i];
        if (is_in(slot, gpu->instance, 0) && (cgroup == 0 || slots_is_of(slot, cgroup)) &&
            ((int)i == gpu->slot || slot_is_held(gpu, i, &holder)))
            used_bytes += slot->memory_bytes;
    }
    high = cgroup == 0 ? gpu->image->orphans_high : 0;
    for (unsigned i = 0; i < high; i++) {
        const image_orphan_t *orphan = &gpu->image->orphans[i];
        if (orphan->memory != 0 && (gpu->instance == 0 || orphan->instance == gpu->instance) &&
            shared_is_had(orphan->memory))
            used_bytes += orphan->bytes;
    }
    return used_bytes;
}

uint64_t slots_used_bytes(const gpu_t *gpu) {
    return slots_used_in(gpu, 0);
}

uint64_t slots_used_in(const gpu_t *gpu, uint64_t cgroup) {
    reading_t reading = {0};
    uint64_t used_bytes;
    do {
        read_begin(gpu, &reading);
        used_bytes = sum_held(gpu, cgroup);
    } while (read_again(gpu, &reading));
    return used_bytes;
}

static size_t list_holders(const gpu_t *gpu, slot_holder_t *holders, size_t capacity) {
    size_t count = 0;
    unsigned high = gpu->image->slots_high;
    for (unsigned i = 0; i < high; i++) {
        pid_t holder = getpid();
        const image_slot_t *slot = &gpu->image->slots[i];
        if (!is_in(slot, gpu->instance, gpu->part) || ((int)i != gpu->slot && !slot_is_held(gpu, i, &holder)))
            continue;
        if (count < capacity)
            holders[count] = (slot_holder_t){.pid = (uint32_t)holder,
                                             .memory_bytes = slot->memory_bytes,
                                             .instance = (uint32_t)slot->instance,
                                             .part = (uint32_t)slot->part,
                                             .slot = i,
                                             .mps = slot->mps != 0};
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
    } while (read_again(gpu, &reading));
    return count;
}
