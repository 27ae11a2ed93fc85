/* The connections of a control daemon. A program that sends commands and the driver of a client use the same socket:
 * a client's first line says so, and it keeps its connection until its process exits. */
#define _GNU_SOURCE
#include "command/mps_daemon.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "command/mps_commands.h"
#include "command/mps_partition.h"
#include "command/mps_server.h"
#include "image/clock.h"
#include "time/timeline.h"

#define CONNECTIONS 1024u
#define SWEEPS 10u /* after the end of a client: its other descriptors may be closed later than its connection */
#define SWEEP_MS 2
#define DEADLINE_MS 20
#define ERROR_SERVER_NOT_READY 807

typedef struct {
    int descriptor; /* -1: free */
    bool is_client;
    size_t length;
    char line[8192];
} connection_t;

static connection_t connections[CONNECTIONS];
static unsigned sweeps;

static unsigned clients(void) {
    unsigned count = 0;
    for (unsigned i = 0; i < CONNECTIONS; i++)
        count += connections[i].descriptor >= 0 && connections[i].is_client;
    return count;
}

static void drop(connection_t *connection) {
    close(connection->descriptor);
    connection->descriptor = -1;
    if (connection->is_client)
        sweeps = SWEEPS;
}

static void write_limits(FILE *answer) {
    const mps_limits_t *limits = mps_server_limits();
    const char *comma = "";
    for (unsigned i = 0; i < mps_gpu_count(); i++) {
        fprintf(answer, "%s%s=%llu", comma, mps_gpu(i)->image->uuid, (unsigned long long)limits->pinned_bytes[i]);
        comma = ",";
    }
}

/* Write what mps.c of the driver reads. */
static void write_server(unsigned partition, unsigned multiprocessors, FILE *answer) {
    const gpu_t *gpu = mps_gpu(0);
    unsigned long long id = gpu->image->servers[mps_server_entry(0) - 1].id;
    fprintf(answer, "server %llu %.3f %d %u %u ", id, mps_server_limits()->percent, mps_state.is_static, partition,
            multiprocessors);
    for (unsigned i = 0; i < mps_gpu_count(); i++)
        fprintf(answer, "%s%s", i > 0 ? "," : "", mps_gpu(i)->image->uuid);
    fprintf(answer, " ");
    write_limits(answer);
    fprintf(answer, "\n");
}

/* Without multi-user mode, the server serves one user: when its last client has exited, it makes room for the server
 * of another. Returns whether the client gets its server now. */
static bool admit(connection_t *connection, const char *partition_name, FILE *answer) {
    struct ucred peer = {.uid = 0};
    socklen_t size = sizeof peer;
    (void)getsockopt(connection->descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    bool fits = mps_state.multi_user || mps_server_user() == peer.uid;
    if (mps_server_pid() != 0 && clients() == 0 && (!fits || mps_state.server != MPS_STAYS)) {
        mps_server_end();
        mps_state.server = MPS_STAYS;
    }
    if (mps_server_pid() == 0 && mps_gpu_count() > 0)
        mps_server_start(mps_state.multi_user ? getuid() : peer.uid);
    else if (!fits || mps_state.server != MPS_STAYS) {
        fprintf(answer, "wait\n");
        return false;
    }
    unsigned multiprocessors = 0, partition = 0;
    if (mps_state.is_static)
        partition = mps_partition_find(partition_name, &multiprocessors);
    if (mps_gpu_count() == 0 || mps_server_entry(0) == 0 || mps_server_has_fault(partition)) {
        fprintf(answer, "error %d\n", ERROR_SERVER_NOT_READY);
        return false;
    }
    mps_log("NEW CLIENT %d from user %u\n", (int)peer.pid, peer.uid);
    write_server(partition, multiprocessors, answer);
    return true;
}

static void serve_line(connection_t *connection, char *line) {
    char *text = NULL, partition[4096], directory[4096];
    size_t size = 0;
    FILE *answer = open_memstream(&text, &size);
    if (answer == NULL)
        return;
    if (sscanf(line, "client %4095s %4095s", partition, directory) == 2) {
        mps_find_gpus(directory);
        connection->is_client = admit(connection, partition, answer);
    } else {
        mps_log("NEW UI: %s\n", line);
        mps_command(line, answer);
    }
    fclose(answer);
    (void)send(connection->descriptor, text, size, MSG_NOSIGNAL);
    free(text);
}

static void read_connection(connection_t *connection) {
    ssize_t got = recv(connection->descriptor, connection->line + connection->length,
                       sizeof connection->line - 1 - connection->length, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        drop(connection);
        return;
    }
    connection->length += (size_t)got;
    connection->line[connection->length] = '\0';
    char *end;
    while (mps_state.daemon != MPS_ENDS_NOW && (end = strchr(connection->line, '\n')) != NULL) {
        *end = '\0';
        serve_line(connection, connection->line);
        connection->length -= (size_t)(end + 1 - connection->line);
        memmove(connection->line, end + 1, connection->length + 1);
    }
    if (connection->length == sizeof connection->line - 1)
        drop(connection);
}

static void accept_connection(int listener) {
    int descriptor = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    for (unsigned i = 0; i < CONNECTIONS && descriptor >= 0; i++) {
        if (connections[i].descriptor >= 0)
            continue;
        connections[i] = (connection_t){.descriptor = descriptor};
        return;
    }
    if (descriptor >= 0)
        close(descriptor);
}

/* Wait for input, and handle it. */
static void turn(int listener) {
    static struct pollfd polled[CONNECTIONS + 2];
    static connection_t *of[CONNECTIONS + 2];
    unsigned count = 2;
    polled[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = mps_server_pidfd(), .events = POLLIN};
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        if (connections[i].descriptor < 0)
            continue;
        polled[count] = (struct pollfd){.fd = connections[i].descriptor, .events = POLLIN};
        of[count++] = &connections[i];
    }
    int timeout_ms = sweeps > 0 ? SWEEP_MS : mps_state.daemon != MPS_STAYS ? DEADLINE_MS : -1;
    if (poll(polled, count, timeout_ms) < 0)
        return;
    for (unsigned i = 2; i < count; i++) {
        if (polled[i].revents != 0)
            read_connection(of[i]);
    }
    if (polled[0].revents != 0)
        accept_connection(listener);
    mps_server_reap();
}

/* Notice now if a client was killed with work outstanding. */
static void sweep(void) {
    for (unsigned i = 0; sweeps > 0 && i < mps_gpu_count(); i++)
        timeline_sweep(mps_gpu(i));
    sweeps -= sweeps > 0;
}

static bool is_over(void) {
    return mps_state.daemon == MPS_ENDS_NOW ||
           (mps_state.daemon == MPS_ENDS_WITHOUT_CLIENTS && (clients() == 0 || clock_now_ns() > mps_state.deadline_ns));
}

void mps_serve(int listener) {
    for (unsigned i = 0; i < CONNECTIONS; i++)
        connections[i].descriptor = -1;
    while (!is_over()) {
        turn(listener);
        sweep();
        if (mps_state.server == MPS_ENDS_NOW || (mps_state.server != MPS_STAYS && clients() == 0)) {
            mps_server_end();
            mps_state.server = MPS_STAYS;
        }
    }
    mps_server_end();
}
