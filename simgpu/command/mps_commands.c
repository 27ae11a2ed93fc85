/* Reference: https://docs.nvidia.com/deploy/mps/, "Legacy MPS v2 Interface". Where it does not say what a command
 * prints, the answer is one sentence. */
#define _GNU_SOURCE
#include "command/mps_commands.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command/mps_partition.h"
#include "command/mps_server.h"
#include "image/clock.h"

#define WORDS 4u
#define SECOND_NS 1000000000ull
#define SHORT_UUID 22

mps_state_t mps_state;

typedef struct {
    const char *words[WORDS + 1]; /* the command first */
    unsigned count;
    FILE *answer;
} call_t;

/* Replace the file atomically. */
void mps_write_defaults(void) {
    FILE *file = fopen("limits.new", "we");
    if (file == NULL)
        return;
    fprintf(file, "default_active_thread_percentage %.1f\n", mps_defaults.percent);
    for (unsigned i = 0; i < IMAGE_MAX_GPUS; i++) {
        if (mps_defaults.pinned_bytes[i] > 0)
            fprintf(file, "default_device_pinned_mem_limit %u %lluM\n", i,
                    (unsigned long long)mps_defaults.pinned_bytes[i] >> 20);
    }
    if (fclose(file) == 0)
        (void)rename("limits.new", "limits");
}

/* Whether a word is the pid of the running server. If not, say so. */
static bool is_server(const call_t *call, unsigned word) {
    pid_t pid = mps_server_pid();
    if (pid != 0 && word < call->count && atoi(call->words[word]) == pid)
        return true;
    fprintf(call->answer, "No server with PID %s: see get_server_list\n", word < call->count ? call->words[word] : "");
    return false;
}

static bool parse_percent(const call_t *call, const char *text, double *percent) {
    char *end;
    double value = strtod(text, &end);
    if (end != text && *end == '\0' && value > 0 && value <= 100) {
        *percent = value;
        return true;
    }
    fprintf(call->answer, "Invalid percentage %s: must be above 0 and at most 100\n", text);
    return false;
}

/* Parse a limit such as 10G or 512M for a device of the daemon. */
static void set_pinned(const call_t *call, mps_limits_t *limits, unsigned word) {
    char unit = '\0';
    unsigned long long number;
    int device = mps_device(call->words[word]), ordinal = atoi(call->words[word]);
    if (device < 0 && mps_gpu_count() == 0 && ordinal >= 0 && ordinal < (int)IMAGE_MAX_GPUS)
        device = ordinal; /* the daemon sees its GPUs later */
    if (device < 0 || sscanf(call->words[word + 1], "%llu%c", &number, &unit) != 2 || (unit != 'M' && unit != 'G'))
        fprintf(call->answer,
                "Invalid limit %s for device %s: must be a number with G or M, for a device of the server\n",
                call->words[word + 1], call->words[word]);
    else
        limits->pinned_bytes[device] = unit == 'G' ? number << 30 : number << 20;
}

static void get_pinned(const call_t *call, const mps_limits_t *limits, unsigned word) {
    int device = mps_gpu_count() > 0 ? mps_device(call->words[word]) : atoi(call->words[word]);
    if (device < 0 || device >= (int)IMAGE_MAX_GPUS)
        fprintf(call->answer, "Invalid device %s\n", call->words[word]);
    else
        fprintf(call->answer, "%lluM\n", (unsigned long long)limits->pinned_bytes[device] >> 20);
}

static void get_server_list(const call_t *call) {
    if (mps_server_pid() != 0)
        fprintf(call->answer, "%d\n", (int)mps_server_pid());
}

static void get_server_status(const call_t *call) {
    if (is_server(call, 1))
        fprintf(call->answer, "%s\n", mps_server_has_fault(0) ? "FAULT" : "ACTIVE");
}

static void start_server(const call_t *call) {
    if (call->count != 3 || strcmp(call->words[1], "-uid") != 0)
        fprintf(call->answer, "start_server takes -uid USER\n");
    else if (mps_server_pid() != 0)
        fprintf(call->answer, "A server already runs: %d\n", (int)mps_server_pid());
    else
        mps_server_start((uid_t)strtoul(call->words[2], NULL, 10));
}

static void shutdown_server(const call_t *call) {
    if (is_server(call, 1))
        mps_state.server =
            call->count > 2 && strcmp(call->words[2], "-f") == 0 ? MPS_ENDS_NOW : MPS_ENDS_WITHOUT_CLIENTS;
}

/* A client appears once, although it may use several GPUs. */
static void get_client_list(const call_t *call) {
    static slot_holder_t holders[IMAGE_SLOTS], before[IMAGE_SLOTS];
    for (unsigned device = 0; is_server(call, 1) && device < mps_gpu_count(); device++) {
        size_t count = mps_server_clients(device, holders);
        for (size_t i = 0; i < count; i++) {
            bool seen = false;
            for (unsigned other = 0; other < device; other++) {
                size_t others = mps_server_clients(other, before);
                for (size_t j = 0; j < others; j++)
                    seen |= before[j].pid == holders[i].pid;
            }
            if (!seen)
                fprintf(call->answer, "%u\n", holders[i].pid);
        }
    }
}

static void get_device_client_list(const call_t *call) {
    static slot_holder_t holders[IMAGE_SLOTS];
    if (call->count > 1 && !is_server(call, 1))
        return;
    for (unsigned device = 0; device < mps_gpu_count(); device++) {
        size_t count = mps_server_clients(device, holders);
        fprintf(call->answer, "%s", mps_gpu(device)->image->uuid);
        for (size_t i = 0; i < count; i++)
            fprintf(call->answer, " %u", holders[i].pid);
        fprintf(call->answer, "\n");
    }
}

static void print_command(FILE *answer, unsigned pid) {
    char path[64], text[1024] = "";
    (void)snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t length = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    for (size_t i = 0; i + 1 < length; i++)
        text[i] = iscntrl((unsigned char)text[i]) ? ' ' : text[i];
    fprintf(answer, "%s\n", text);
}

static unsigned long pid_namespace(unsigned pid) {
    char path[64], text[64] = "";
    unsigned long number = 0;
    (void)snprintf(path, sizeof path, "/proc/%u/ns/pid", pid);
    if (readlink(path, text, sizeof text - 1) > 0)
        (void)sscanf(text, "pid:[%lu]", &number);
    return number;
}

/* The identifier is the client's slot in the GPU's file. */
static void ps(const call_t *call) {
    static slot_holder_t holders[IMAGE_SLOTS];
    if (call->count > 1 && (strcmp(call->words[1], "-p") != 0 || !is_server(call, 2)))
        return;
    fprintf(call->answer, "%-9s %-5s %-9s %-22s %-11s %s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
    for (unsigned device = 0; device < mps_gpu_count(); device++) {
        size_t count = mps_server_clients(device, holders);
        for (size_t i = 0; i < count; i++) {
            fprintf(call->answer, "%-9u %-5u %-9d %-22.*s %-11lu ", holders[i].pid, holders[i].slot,
                    (int)mps_server_pid(), SHORT_UUID, mps_gpu(device)->image->uuid, pid_namespace(holders[i].pid));
            print_command(call->answer, holders[i].pid);
        }
    }
}

/* Prints 0 when the client's work and memory are gone. Its process stays. */
static void terminate_client(const call_t *call) {
    if (!is_server(call, 1))
        return;
    if (mps_server_terminate(atoi(call->words[2])))
        fprintf(call->answer, "0\n");
    else
        fprintf(call->answer, "No client with PID %s: see get_client_list\n", call->words[2]);
}

static void set_default_percent(const call_t *call) {
    if (parse_percent(call, call->words[1], &mps_defaults.percent))
        fprintf(call->answer, "%.1f\n", mps_defaults.percent);
}

static void get_default_percent(const call_t *call) {
    fprintf(call->answer, "%.1f\n", mps_defaults.percent);
}

/* For later clients: those that run keep theirs. */
static void set_percent(const call_t *call) {
    if (is_server(call, 1) && parse_percent(call, call->words[2], &mps_server_limits()->percent))
        fprintf(call->answer, "%.1f\n", mps_server_limits()->percent);
}

static void get_percent(const call_t *call) {
    if (is_server(call, 1))
        fprintf(call->answer, "%.1f\n", mps_server_limits()->percent);
}

static void set_default_pinned(const call_t *call) {
    set_pinned(call, &mps_defaults, 1);
}

static void get_default_pinned(const call_t *call) {
    get_pinned(call, &mps_defaults, 1);
}

static void set_server_pinned(const call_t *call) {
    if (is_server(call, 1))
        set_pinned(call, mps_server_limits(), 2);
}

static void get_server_pinned(const call_t *call) {
    if (is_server(call, 1))
        get_pinned(call, mps_server_limits(), 2);
}

static void sm_partition(const call_t *call) {
    const char *verb = call->words[1], *id = call->count > 3 ? call->words[3] : "";
    char uuid[64];
    (void)snprintf(uuid, sizeof uuid, "%.*s", (int)strcspn(call->words[2], "/"), call->words[2]);
    if (call->count == 3 && strchr(call->words[2], '/') != NULL)
        id = strchr(call->words[2], '/') + 1;
    if (!mps_state.is_static)
        fprintf(call->answer, "Static partitioning is off: start the daemon with -S\n");
    else if (strcmp(verb, "add") == 0 && call->count == 4)
        mps_partition_add(uuid, (unsigned)strtoul(id, NULL, 10), call->answer);
    else if (strcmp(verb, "rm") == 0)
        mps_partition_remove(uuid, id, call->answer);
    else
        fprintf(call->answer, "sm_partition takes add UUID CHUNKS, or rm UUID PARTITION\n");
}

static void lspart(const call_t *call) {
    if (mps_state.is_static)
        mps_partition_list(call->answer);
    else
        fprintf(call->answer, "Static partitioning is off: start the daemon with -S\n");
}

/* With -t, clients have that many seconds to exit. */
static void quit(const call_t *call) {
    bool waits = call->count == 3 && strcmp(call->words[1], "-t") == 0;
    mps_state.daemon = waits ? MPS_ENDS_WITHOUT_CLIENTS : MPS_ENDS_NOW;
    mps_state.deadline_ns = clock_now_ns() + (waits ? strtoull(call->words[2], NULL, 10) * SECOND_NS : 0);
}

static const struct {
    const char *name;
    unsigned least_words;
    void (*run)(const call_t *);
} commands[] = {
    {"get_server_list", 0, get_server_list},
    {"get_server_status", 1, get_server_status},
    {"start_server", 2, start_server},
    {"shutdown_server", 1, shutdown_server},
    {"get_client_list", 1, get_client_list},
    {"get_device_client_list", 0, get_device_client_list},
    {"ps", 0, ps},
    {"terminate_client", 2, terminate_client},
    {"set_default_active_thread_percentage", 1, set_default_percent},
    {"get_default_active_thread_percentage", 0, get_default_percent},
    {"set_active_thread_percentage", 2, set_percent},
    {"get_active_thread_percentage", 1, get_percent},
    {"set_default_device_pinned_mem_limit", 2, set_default_pinned},
    {"get_default_device_pinned_mem_limit", 1, get_default_pinned},
    {"set_device_pinned_mem_limit", 3, set_server_pinned},
    {"get_device_pinned_mem_limit", 2, get_server_pinned},
    {"sm_partition", 2, sm_partition},
    {"lspart", 0, lspart},
    {"quit", 0, quit},
};

void mps_command(const char *line, FILE *answer) {
    call_t call = {.answer = answer};
    char text[1024];
    (void)snprintf(text, sizeof text, "%s", line);
    char *rest = NULL;
    for (char *word = strtok_r(text, " \t", &rest); word != NULL && call.count <= WORDS;
         word = strtok_r(NULL, " \t", &rest))
        call.words[call.count++] = word;
    for (size_t i = 0; call.count > 0 && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, call.words[0]) != 0 || call.count <= commands[i].least_words)
            continue;
        commands[i].run(&call);
        mps_write_defaults();
        return;
    }
    if (call.count > 0)
        fprintf(answer, "Unknown command: %s\n", line);
}
