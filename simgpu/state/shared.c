#define _GNU_SOURCE
#include "state/shared.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_PREFIX "simgpu-"
#define PAGE_BYTES 4096u
#define READS 3u

int shared_make(const gpu_t *gpu, size_t bytes) {
    char name[sizeof NAME_PREFIX + sizeof gpu->image->uuid];
    (void)snprintf(name, sizeof name, NAME_PREFIX "%s", gpu->image->uuid);
    int memory = memfd_create(name, MFD_CLOEXEC);
    if (memory >= 0 && ftruncate(memory, (off_t)bytes) != 0) {
        close(memory);
        return -1;
    }
    return memory;
}

int shared_copy(int memory) {
    return fcntl(memory, F_DUPFD_CLOEXEC, 0);
}

uint64_t shared_extend(int memory, uint64_t offset, size_t bytes) {
    uint64_t end = offset + (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    return ftruncate(memory, (off_t)end) == 0 ? end : offset;
}

void shared_discard(int memory, uint64_t offset, size_t bytes) {
    (void)fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

bool shared_lock(int memory) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(memory, F_OFD_SETLK, &lock) == 0;
}

uint64_t shared_inode(int memory) {
    struct stat status;
    return fstat(memory, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* The kernel returns at most one page of the list per read. */
static bool is_listed(uint64_t number) {
    char line[256], page[PAGE_BYTES];
    bool found = false;
    FILE *locks = fopen("/proc/locks", "re");
    if (locks != NULL)
        (void)setvbuf(locks, page, _IOFBF, sizeof page);
    while (locks != NULL && !found && fgets(line, sizeof line, locks) != NULL) {
        unsigned long long inode;
        found = sscanf(line, "%*d: OFDLCK %*s %*s %*d %*x:%*x:%llu", &inode) == 1 && inode == number;
    }
    if (locks != NULL)
        fclose(locks);
    return found;
}

/* Read the list several times. The kernel counts the locks again for each page, so when other locks have gone
 * meanwhile, an existing one may be skipped. A lock that does not exist is never listed. */
bool shared_is_open(uint64_t number) {
    for (unsigned reads = 0; reads < READS; reads++) {
        if (is_listed(number))
            return true;
    }
    return false;
}

bool shared_is_on(int memory, const gpu_t *gpu) {
    char path[64], name[256] = "";
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    return readlink(path, name, sizeof name - 1) > 0 && strstr(name, gpu->image->uuid) != NULL;
}
