/* The locked bytes lie beyond the end of the file, so they never overlap data. */
#define _GNU_SOURCE
#include "state/locks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOCK_QUEUES ((off_t)1 << 28)
#define QUEUE_LOCKS 8u
#define LOCK_PAUSE_NS 20000
#define LOCK_CHANGES ((off_t)1 << 29)
#define LOCK_SLOTS ((off_t)1 << 30)
#define LOCK_SERVERS ((off_t)1 << 31)

static bool lock_byte(int descriptor, int command, short type, off_t byte, pid_t *holder_p) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do {
        result = fcntl(descriptor, command, &lock);
        /* Retry: the kernel sees two threads of a process as one waiter and reports a deadlock that resolves itself. */
    } while (result != 0 && (errno == EINTR || errno == EDEADLK));
    if (holder_p != NULL)
        *holder_p = lock.l_pid;
    return command == F_GETLK ? result == 0 && lock.l_type != F_UNLCK : result == 0;
}

/* The counter is odd during a change. A process killed in the middle leaves it odd; the next change continues from
 * there. */
void gpu_lock_changes(gpu_t *gpu) {
    pthread_mutex_lock(&gpu->mutex);
    (void)lock_byte(gpu->descriptor, F_SETLKW, F_WRLCK, LOCK_CHANGES, NULL);
    gpu->image->changes += gpu->image->changes % 2 == 0 ? 1 : 2;
}

void gpu_unlock_changes(gpu_t *gpu) {
    gpu->image->changes += 1;
    (void)lock_byte(gpu->descriptor, F_SETLK, F_UNLCK, LOCK_CHANGES, NULL);
    pthread_mutex_unlock(&gpu->mutex);
}

/* Field 22 of /proc/self/stat, counted after the closing bracket of the command. */
uint64_t own_start_ticks(void) {
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

/* F_GETLK never reports the calling process's own locks. A process recognizes its own slot by the slot's content. */
static bool slot_is_own(const image_slot_t *slot) {
    return slot->pid == (uint64_t)getpid() && slot->start_ticks == own_start_ticks();
}

bool slot_lock(const gpu_t *gpu, unsigned index) {
    return lock_byte(gpu->descriptor, F_SETLK, F_WRLCK, LOCK_SLOTS + index, NULL);
}

bool slot_is_held(const gpu_t *gpu, unsigned index, pid_t *holder_p) {
    const image_slot_t *slot = &gpu->image->slots[index];
    if (slot->pid == 0)
        return false;
    if (lock_byte(gpu->descriptor, F_GETLK, F_WRLCK, LOCK_SLOTS + index, holder_p))
        return true;
    *holder_p = getpid();
    return slot_is_own(slot);
}

bool server_lock(const gpu_t *gpu, unsigned entry) {
    return lock_byte(gpu->descriptor, F_SETLK, F_WRLCK, LOCK_SERVERS + entry, NULL);
}

void server_unlock(const gpu_t *gpu, unsigned entry) {
    (void)lock_byte(gpu->descriptor, F_SETLK, F_UNLCK, LOCK_SERVERS + entry, NULL);
}

bool server_is_held(const gpu_t *gpu, unsigned entry) {
    return lock_byte(gpu->descriptor, F_GETLK, F_WRLCK, LOCK_SERVERS + entry, NULL);
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

/* If the process that holds the lock is stopped, the others use the next lock until it continues, so the GPU does
 * not stop. */
void gpu_lock_queues(gpu_t *gpu) {
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

void gpu_unlock_queues(gpu_t *gpu) {
    (void)lock_byte(gpu->descriptor, F_SETLK, F_UNLCK, LOCK_QUEUES + gpu->queues_lock, NULL);
    pthread_mutex_unlock(&gpu->queues_mutex);
}

bool slot_is_alive(const gpu_t *gpu, unsigned index, uint64_t pid, uint64_t start_ticks) {
    const image_slot_t *slot = &gpu->image->slots[index];
    pid_t holder;
    return slot->pid == pid && slot->start_ticks == start_ticks && slot_is_held(gpu, index, &holder);
}
