#define _GNU_SOURCE
#include "base/report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
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
    /* Not write, at which a thread could be cancelled. If nobody listens, nothing is lost that anyone would see. */
    (void)syscall(SYS_write, STDERR_FILENO, line, length);
    errno = saved;
}
