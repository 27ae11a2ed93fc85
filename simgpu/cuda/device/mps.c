/* Whether a process may have a context on a GPU, and how much of the GPU it gets, by compute mode and MPS.
 *
 * A process is an MPS client if a control daemon listens in CUDA_MPS_PIPE_DIRECTORY, or the default directory, when it
 * calls cuInit. With a wrong directory it silently runs without MPS. The daemon sends it its server and limits, and
 * detects its exit by the connection. mps_daemon.c has the other end. */
#define _GNU_SOURCE
#include "cuda/device/mps.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "image/clock.h"
#include "state/servers.h"
#include "state/slots.h"

#define WHOLE 100.0
#define PROHIBITED 2u
#define EXCLUSIVE_PROCESS 3u
#define DEFAULT_PIPE_DIRECTORY "/tmp/nvidia-mps"
#define WAIT_NS 20000000ull
#define UUID_LENGTH 40u

static struct {
    bool is_client;
    int connection;
    uint64_t server;
    double percent;
    bool is_static;                    /* the daemon runs with static partitioning */
    unsigned partition, partition_sms; /* 0: none */
    char devices[4096];                /* UUIDs, with commas */
    char limits[4096];                 /* UUID=bytes, with commas */
} own = {.connection = -1, .percent = WHOLE};

/* The path goes through the directory's descriptor, because the directory's own path may be too long for a socket
 * address. Returns -1 if no daemon listens. */
static int connect_daemon(void) {
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int place = open(directory != NULL ? directory : DEFAULT_PIPE_DIRECTORY, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int descriptor = place >= 0 ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/control", place);
    if (descriptor >= 0 && connect(descriptor, (const struct sockaddr *)&address, sizeof address) != 0) {
        close(descriptor);
        descriptor = -1;
    }
    if (place >= 0)
        close(place);
    return descriptor;
}

/* Ask to become a client. False: the daemon has closed the connection. */
static bool ask(int connection, char *answer, size_t size) {
    char question[8192];
    const char *partition = getenv("CUDA_MPS_SM_PARTITION");
    int length = snprintf(question, sizeof question, "client %s %s\n",
                          partition != NULL && partition[0] != '\0' ? partition : "-", gpus_directory());
    if (length >= (int)sizeof question || send(connection, question, (size_t)length, MSG_NOSIGNAL) != length)
        return false;
    size_t at = 0;
    while (at + 1 < size && (at == 0 || answer[at - 1] != '\n')) {
        ssize_t got = read(connection, answer + at, size - 1 - at);
        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    answer[at] = '\0';
    return true;
}

/* Read the answer that mps_daemon.c writes. */
static bool accept_server(const char *answer) {
    unsigned long long server;
    int is_static;
    if (sscanf(answer, "server %llu %lf %d %u %u %4095s %4095s", &server, &own.percent, &is_static, &own.partition,
               &own.partition_sms, own.devices, own.limits) != 7)
        return false;
    own.server = server;
    own.is_static = is_static != 0;
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double percent = text != NULL ? atof(text) : 0;
    if (percent > 0 && percent < own.percent)
        own.percent = percent; /* a client can lower it, but not raise it */
    return true;
}

CUresult mps_connect(void) {
    static char answer[9216];
    for (;;) {
        int connection = connect_daemon(), error = CUDA_ERROR_MPS_CONNECTION_FAILED;
        if (connection < 0)
            return CUDA_SUCCESS;
        bool answered = ask(connection, answer, sizeof answer);
        own.is_client = answered && accept_server(answer);
        own.connection = connection;
        if (own.is_client)
            return CUDA_SUCCESS;
        close(connection);
        if (!answered || strcmp(answer, "wait\n") != 0) {
            (void)sscanf(answer, "error %d", &error);
            return (CUresult)error;
        }
        clock_sleep_until(clock_now_ns() + WAIT_NS); /* clients of another user are still there */
    }
}

void mps_forget(void) {
    if (own.connection >= 0)
        close(own.connection);
    own.connection = -1;
}

bool mps_is_client(void) {
    return own.is_client;
}

const char *mps_devices(void) {
    return own.is_client ? own.devices : NULL;
}

static uint64_t parse_size(const char *text) {
    char *end;
    uint64_t number = strtoull(text, &end, 10);
    return *end == 'G' ? number << 30 : *end == 'M' ? number << 20 : *end == 'K' ? number << 10 : number;
}

/* Find `key=` in a list with commas. Returns what follows; NULL: it is not there. */
static const char *find_value(const char *list, const char *key) {
    size_t length = strlen(key);
    for (const char *at = list; at != NULL && *at != '\0'; at = strchr(at, ','), at += at != NULL) {
        if (strncmp(at, key, length) == 0 && at[length] == '=')
            return at + length + 1;
    }
    return NULL;
}

/* Whether the list, such as `0=2G,1=10G`, names a device that this process does not see. */
static bool names_unseen(const char *list, int devices) {
    for (const char *at = list; at != NULL && *at != '\0'; at = strchr(at, ','), at += at != NULL) {
        int ordinal;
        if (sscanf(at, "%d=", &ordinal) == 1 && (ordinal < 0 || ordinal >= devices))
            return true;
    }
    return false;
}

/* A client can lower its limit below the server's, but not raise it. One wrong number drops all limits: NVIDIA's
 * driver does so silently. */
static uint64_t limit_bytes(const gpu_t *gpu, CUdevice device, int devices) {
    const char *list = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    char ordinal[16];
    (void)snprintf(ordinal, sizeof ordinal, "%d", device);
    const char *server = find_value(own.limits, gpu->image->uuid), *client = find_value(list, ordinal);
    if (names_unseen(list, devices))
        return 0;
    uint64_t server_bytes = server != NULL ? parse_size(server) : 0,
             own_bytes = client != NULL ? parse_size(client) : 0;
    return own_bytes != 0 && (server_bytes == 0 || own_bytes < server_bytes) ? own_bytes : server_bytes;
}

static bool has_partition(const gpu_t *gpu) {
    const char *name = getenv("CUDA_MPS_SM_PARTITION");
    return own.is_static && own.partition != 0 && name != NULL &&
           strncmp(name, gpu->image->uuid, strlen(gpu->image->uuid)) == 0;
}

unsigned mps_partition_multiprocessors(const gpu_t *gpu) {
    return own.is_client && has_partition(gpu) ? own.partition_sms : 0;
}

static unsigned percent_of(const gpu_t *gpu) {
    double percent = has_partition(gpu) ? WHOLE * own.partition_sms / gpu->image->multiprocessors : own.percent + 0.5;
    return percent < 1 ? 1 : (unsigned)percent;
}

/* In exclusive mode, either one process or one server has the GPU. */
static bool is_taken(const gpu_t *gpu, unsigned server) {
    static slot_holder_t holders[IMAGE_SLOTS];
    size_t count = slots_holders(gpu, holders, IMAGE_SLOTS);
    for (size_t i = 0; i < count; i++) {
        if (server == 0 || holders[i].mps != server)
            return true;
    }
    return server == 0 && servers_any(gpu);
}

CUresult mps_admit(gpu_t *gpu, CUdevice device, int devices) {
    if (gpu->slot >= 0)
        return mps_ended(gpu);
    unsigned server = own.is_client ? servers_find(gpu, own.server) : 0;
    if (gpu->image->compute_mode == PROHIBITED ||
        (gpu->image->compute_mode == EXCLUSIVE_PROCESS && is_taken(gpu, server)))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!own.is_client)
        return CUDA_SUCCESS;
    if (own.is_static && !has_partition(gpu))
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (server == 0 || servers_have_fault(gpu, server, own.partition))
        return CUDA_ERROR_MPS_SERVER_NOT_READY;
    gpu->mps = server;
    gpu->server = own.server;
    gpu->partition = own.partition;
    gpu->percent = percent_of(gpu);
    gpu->limit_bytes = limit_bytes(gpu, device, devices);
    return CUDA_SUCCESS;
}

/* https://docs.nvidia.com/deploy/mps/: 60 from CUDA 13.1. */
unsigned mps_max_contexts(const gpu_t *gpu) {
    if (gpu->image->compute_capability_major < 7)
        return 16;
    return gpu->image->cuda_version >= 13010 ? 60 : 48;
}

CUresult mps_ended(const gpu_t *gpu) {
    return gpu->slot >= 0 ? (CUresult)gpu->image->slots[gpu->slot].ended : CUDA_SUCCESS;
}
