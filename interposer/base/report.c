#define _GNU_SOURCE
#include "base/report.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void report(const char *format, ...) {
    static const char prefix[] = "gpushare: ";
    char line[768];
    int saved = errno;
    size_t length = sizeof prefix - 1;
    memcpy(line, prefix, length);

    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    if (written > 0)
        length += (size_t)written < sizeof line - length - 1 ? (size_t)written : sizeof line - length - 2;
    line[length++] = '\n';
    /* System calls, because poll() and write() are cancellation points. Without the poll, a pipe without a reader
     * would raise SIGPIPE and a full pipe would block. In both cases the line is dropped. */
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    struct timespec at_once = {0};
    if (syscall(SYS_ppoll, &out, 1, &at_once, NULL, 0) == 1 && out.revents == POLLOUT)
        (void)syscall(SYS_write, STDERR_FILENO, line, length);
    errno = saved;
}
