/* `nvidia-cuda-mps-control`: with -d, or -f to stay in the foreground, the control daemon of MPS; without an argument,
 * it reads commands from stdin, has the daemon run them, and writes the answers to stdout.
 *
 * The daemon's socket, its pid and its default limits are in the pipe directory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "command/mps_commands.h"
#include "command/mps_daemon.h"
#include "command/mps_partition.h"
#include "command/mps_server.h"

#define DEFAULT_PIPE_DIRECTORY "/tmp/nvidia-mps"
#define PID_FILE "nvidia-cuda-mps-control.pid"
#define USAGE                                                                                                          \
    "usage: nvidia-cuda-mps-control [-d | -f] [-m] [-S]; without an option, it reads commands from stdin\n"            \
    "  -d, -f  run the daemon in the background, in the foreground\n"                                                  \
    "  -m, -M, -multiuser-server  one server for the clients of all users, from Volta on\n"                            \
    "  -S, --static-partitioning  clients run in static SM partitions"

static int print_error(const char *sentence) {
    fprintf(stderr, "%s\n", sentence);
    return EXIT_FAILURE;
}

/* The socket's path is relative, because a pipe directory's path may be too long for a socket address. */
static bool enter_pipe_directory(void) {
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    return chdir(directory != NULL ? directory : DEFAULT_PIPE_DIRECTORY) == 0;
}

static const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "control"};

static int connected(void) {
    int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor >= 0 && connect(descriptor, (const struct sockaddr *)&address, sizeof address) == 0)
        return descriptor;
    if (descriptor >= 0)
        close(descriptor);
    return -1;
}

static bool copy(int from, int to) {
    char buffer[4096];
    ssize_t length;
    while ((length = read(from, buffer, sizeof buffer)) > 0) {
        if (write(to, buffer, (size_t)length) != length)
            return false;
    }
    return length == 0;
}

static int send_commands(void) {
    int descriptor = enter_pipe_directory() ? connected() : -1;
    if (descriptor < 0)
        return print_error("Cannot find MPS control daemon process");
    bool sent = copy(STDIN_FILENO, descriptor) && shutdown(descriptor, SHUT_WR) == 0;
    return sent && copy(descriptor, STDOUT_FILENO) ? EXIT_SUCCESS
                                                   : print_error("The MPS control daemon has closed the connection");
}

static int serve(int listener) {
    FILE *pid = fopen(PID_FILE, "we");
    if (pid == NULL || fprintf(pid, "%d\n", getpid()) < 0 || fclose(pid) != 0)
        return EXIT_FAILURE;
    mps_write_defaults();
    mps_log("Start\n");
    mps_serve(listener);
    mps_log("Exit\n");
    (void)unlink("control");
    (void)unlink(PID_FILE);
    (void)unlink("limits");
    return EXIT_SUCCESS;
}

/* Clients of all users may connect. */
static int listen_in_pipe_directory(void) {
    (void)unlink("control");
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (const struct sockaddr *)&address, sizeof address) != 0 ||
        chmod("control", 0666) != 0 || listen(listener, SOMAXCONN) != 0)
        return -1;
    return listener;
}

static int start(bool background) {
    const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    mps_find_gpus(gpus_directory());
    if (percent != NULL && atof(percent) > 0 && atof(percent) <= 100)
        mps_defaults.percent = atof(percent);
    if (mps_state.is_static && !mps_partitions_are_known())
        return print_error("Unknown option -S: static SM partitions need a driver with CUDA 13.1 or later");
    if (!enter_pipe_directory())
        return print_error("The pipe directory does not exist");
    if (connected() >= 0)
        return print_error("An instance of this daemon is already running");
    int listener = listen_in_pipe_directory();
    if (listener < 0)
        return print_error("Cannot create the control socket");
    pid_t child = background ? fork() : 0;
    if (child < 0)
        return print_error("Cannot start the daemon");
    if (child > 0)
        return EXIT_SUCCESS; /* commands can be sent from now on: the socket exists */
    if (background) {
        int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
        (void)setsid();
        for (int i = STDIN_FILENO; nothing >= 0 && i <= STDERR_FILENO; i++)
            (void)dup2(nothing, i);
    }
    return serve(listener);
}

int main(int count, char **arguments) {
    char mode = '\0';
    for (int i = 1; i < count; i++) {
        const char *word = arguments[i];
        if (strcmp(word, "-d") == 0 || strcmp(word, "-f") == 0)
            mode = word[1];
        else if (strcasecmp(word, "-m") == 0 || strcmp(word, "-multiuser-server") == 0)
            mps_state.multi_user = true;
        else if (strcmp(word, "-S") == 0 || strcmp(word, "--static-partitioning") == 0)
            mps_state.is_static = true;
        else
            return print_error(USAGE);
    }
    if (count == 1)
        return send_commands();
    return mode != '\0' ? start(mode == 'd') : print_error(USAGE);
}
