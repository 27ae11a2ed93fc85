#define _GNU_SOURCE
#include "command/mps_server.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "image/clock.h"
#include "state/servers.h"
#include "time/timeline.h"

#define DEFAULT_LOG_DIRECTORY "/var/log/nvidia-mps"

mps_limits_t mps_defaults = {.percent = 100};

static gpu_t found[IMAGE_MAX_GPUS];
static gpu_t *served[IMAGE_MAX_GPUS];
static unsigned served_count;

static struct {
    pid_t pid; /* 0: there is none */
    int pidfd;
    uid_t user;
    mps_limits_t limits;
    unsigned entries[IMAGE_MAX_GPUS];
} server = {.pidfd = -1};

void mps_log(const char *format, ...) {
    static FILE *log;
    va_list arguments;
    if (log == NULL) {
        const char *directory = getenv("CUDA_MPS_LOG_DIRECTORY");
        char path[4096];
        (void)snprintf(path, sizeof path, "%s/control.log", directory != NULL ? directory : DEFAULT_LOG_DIRECTORY);
        log = fopen(path, "ae");
    }
    if (log == NULL)
        return;
    va_start(arguments, format);
    vfprintf(log, format, arguments);
    va_end(arguments);
    fflush(log);
}

static int device_among(const char *name, gpu_t *const *gpus, unsigned count) {
    char *end;
    unsigned long number = strtoul(name, &end, 10);
    if (*name != '\0' && *end == '\0')
        return number < count ? (int)number : -1;
    for (unsigned i = 0; strncmp(name, "GPU-", 4) == 0 && i < count; i++) {
        if (strncmp(gpus[i]->image->uuid, name, strlen(name)) == 0)
            return (int)i;
    }
    return -1;
}

void mps_find_gpus(const char *directory) {
    unsigned count = 0;
    if (served_count > 0 || gpus_open(directory, GPUS_WRITE, found, &count) != GPUS_OK)
        return;
    gpu_t *all[IMAGE_MAX_GPUS];
    for (unsigned i = 0; i < count; i++)
        all[i] = &found[i];
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    if (wanted == NULL) {
        memcpy(served, all, count * sizeof *all);
        served_count = count;
        return;
    }
    char *words = strdup(wanted), *rest = words, *word;
    int device;
    while (words != NULL && (word = strsep(&rest, ",")) != NULL && served_count < IMAGE_MAX_GPUS &&
           (device = device_among(word, all, count)) >= 0)
        served[served_count++] = all[device];
    free(words);
}

unsigned mps_gpu_count(void) {
    return served_count;
}

gpu_t *mps_gpu(unsigned device) {
    return served[device];
}

int mps_device(const char *name) {
    return device_among(name, served, served_count);
}

/* The process dies with its daemon, and keeps none of the daemon's descriptors. */
static void wait_for_death(pid_t daemon) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, "nvidia-cuda-mps-server");
    (void)close_range(0, ~0u, 0);
    while (getppid() == daemon)
        (void)pause();
    _exit(0);
}

void mps_server_start(uid_t user) {
    pid_t daemon = getpid(), pid = fork();
    if (pid == 0)
        wait_for_death(daemon);
    if (pid < 0)
        return;
    server.pid = pid;
    server.pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    server.user = user;
    server.limits = mps_defaults;
    uint64_t id = (uint64_t)pid << 40 ^ clock_now_ns();
    for (unsigned i = 0; i < served_count; i++)
        server.entries[i] = servers_add(served[i], id);
    mps_log("Starting new server %d for user %u\n", (int)pid, user);
}

static int reap(void) {
    int status = 0;
    (void)waitpid(server.pid, &status, 0);
    close(server.pidfd);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void end_all_clients(void) {
    static slot_holder_t holders[IMAGE_SLOTS];
    for (unsigned device = 0; device < served_count; device++) {
        size_t count = slots_holders(served[device], holders, IMAGE_SLOTS);
        for (size_t i = 0; i < count; i++) {
            if (server.entries[device] != 0 && holders[i].mps == server.entries[device])
                timeline_end_client(served[device], holders[i].slot, ENDED_WITH_SERVER);
        }
        if (server.entries[device] != 0)
            servers_remove(served[device], server.entries[device]);
        server.entries[device] = 0;
    }
}

static void forget(int status) {
    mps_log("Server %d exited with status %d\n", (int)server.pid, status);
    end_all_clients();
    server.pid = 0;
    server.pidfd = -1;
}

void mps_server_end(void) {
    if (server.pid == 0)
        return;
    (void)kill(server.pid, SIGKILL);
    (void)reap();
    forget(0);
}

void mps_server_reap(void) {
    siginfo_t info = {.si_pid = 0};
    if (server.pid == 0 || waitid(P_PID, (id_t)server.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        return;
    forget(reap());
}

pid_t mps_server_pid(void) {
    return server.pid;
}

int mps_server_pidfd(void) {
    return server.pidfd;
}

uid_t mps_server_user(void) {
    return server.user;
}

mps_limits_t *mps_server_limits(void) {
    return &server.limits;
}

unsigned mps_server_entry(unsigned device) {
    return server.entries[device];
}

bool mps_server_has_fault(unsigned partition) {
    for (unsigned i = 0; server.pid != 0 && i < served_count; i++) {
        if (server.entries[i] != 0 && servers_have_fault(served[i], server.entries[i], partition))
            return true;
    }
    return false;
}

size_t mps_server_clients(unsigned device, slot_holder_t *holders) {
    size_t count = slots_holders(served[device], holders, IMAGE_SLOTS), kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (server.pid != 0 && holders[i].pid != 0 && holders[i].mps != 0 && holders[i].mps == server.entries[device])
            holders[kept++] = holders[i];
    }
    return kept;
}

bool mps_server_terminate(pid_t client) {
    static slot_holder_t holders[IMAGE_SLOTS];
    bool ended = false;
    for (unsigned device = 0; device < served_count; device++) {
        size_t count = mps_server_clients(device, holders);
        for (size_t i = 0; i < count; i++) {
            if ((pid_t)holders[i].pid != client)
                continue;
            timeline_end_client(served[device], holders[i].slot, ENDED_BY_DAEMON);
            ended = true;
        }
    }
    return ended;
}
