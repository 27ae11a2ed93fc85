/* A small `nvidia-cuda-mps-control`: the daemon keeps limits, and a second run of the program sends it commands.
 *
 * The daemon (-d, or -f to stay in the foreground) writes its pid next to its control socket, as the real one does,
 * and its clients' limits to the file `limits`, which the simulated libcuda reads. Without an argument, the program
 * reads commands from stdin and writes answers to stdout. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEVICES 64u
#define DEFAULT_PIPE_DIRECTORY "/tmp/nvidia-mps"
#define DEFAULT_LOG_DIRECTORY "/var/log/nvidia-mps"
#define PID_FILE "nvidia-cuda-mps-control.pid"

typedef struct {
    double percent;
    unsigned long long pinned_mib[DEVICES]; /* 0: no limit */
} limits_t;

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

/* Replace the file atomically. */
static void write_limits(const limits_t *limits) {
    FILE *file = fopen("limits.new", "we");
    if (file == NULL)
        return;
    fprintf(file, "default_active_thread_percentage %.1f\n", limits->percent);
    for (unsigned i = 0; i < DEVICES; i++) {
        if (limits->pinned_mib[i] > 0)
            fprintf(file, "default_device_pinned_mem_limit %u %lluM\n", i, limits->pinned_mib[i]);
    }
    if (fclose(file) == 0)
        (void)rename("limits.new", "limits");
}

/* Run a command. False: it was `quit`. */
static bool run_command(char *line, limits_t *limits, FILE *answer) {
    unsigned device;
    unsigned long long size;
    double percent;
    char unit = '\0';
    if (sscanf(line, "set_default_active_thread_percentage %lf", &percent) == 1 && percent > 0 && percent <= 100) {
        limits->percent = percent;
    } else if (strcmp(line, "get_default_active_thread_percentage") == 0) {
        fprintf(answer, "%.1f\n", limits->percent);
    } else if (sscanf(line, "set_default_device_pinned_mem_limit %u %llu%c", &device, &size, &unit) == 3 &&
               device < DEVICES && (unit == 'M' || unit == 'G')) {
        limits->pinned_mib[device] = unit == 'G' ? size << 10 : size;
    } else if (sscanf(line, "get_default_device_pinned_mem_limit %u", &device) == 1 && device < DEVICES) {
        fprintf(answer, "%lluM\n", limits->pinned_mib[device]);
    } else if (strcmp(line, "quit") == 0) {
        return false;
    } else if (line[0] != '\0') {
        fprintf(answer, "Unknown command: %s\n", line);
    }
    write_limits(limits);
    return true;
}

static bool serve_client(int descriptor, limits_t *limits, FILE *log) {
    FILE *commands = fdopen(descriptor, "re");
    int copied = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    FILE *answers = copied >= 0 ? fdopen(copied, "we") : NULL;
    char line[1024];
    bool stay = true;
    while (stay && commands != NULL && answers != NULL && fgets(line, sizeof line, commands) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        fprintf(log, "NEW UI: %s\n", line);
        fflush(log);
        stay = run_command(line, limits, answers);
        fflush(answers);
    }
    if (commands != NULL)
        fclose(commands);
    if (answers != NULL)
        fclose(answers);
    return stay;
}

static FILE *open_log(void) {
    const char *directory = getenv("CUDA_MPS_LOG_DIRECTORY");
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/control.log", directory != NULL ? directory : DEFAULT_LOG_DIRECTORY);
    FILE *log = fopen(path, "ae");
    return log != NULL ? log : fopen("/dev/null", "we");
}

static int serve(int listener) {
    static limits_t limits = {.percent = 100};
    FILE *log = open_log();
    FILE *pid = fopen(PID_FILE, "we");
    if (log == NULL || pid == NULL || fprintf(pid, "%d\n", getpid()) < 0 || fclose(pid) != 0)
        return EXIT_FAILURE;
    write_limits(&limits);
    fprintf(log, "Start\n");
    fflush(log);
    int descriptor;
    do {
        descriptor = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    } while (descriptor < 0 ? errno == EINTR : serve_client(descriptor, &limits, log));
    fprintf(log, "Exit\n");
    (void)unlink("control");
    (void)unlink(PID_FILE);
    (void)unlink("limits");
    return EXIT_SUCCESS;
}

static int start(bool background) {
    if (!enter_pipe_directory())
        return print_error("The pipe directory does not exist");
    if (connected() >= 0)
        return print_error("An instance of this daemon is already running");
    (void)unlink("control");
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 16) != 0)
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
    if (count == 1)
        return send_commands();
    if (count == 2 && (strcmp(arguments[1], "-d") == 0 || strcmp(arguments[1], "-f") == 0))
        return start(arguments[1][1] == 'd');
    return print_error("usage: nvidia-cuda-mps-control [-d | -f]; without an option, it reads commands from stdin");
}
