/* Write one line to stderr, prefixed with "gpushare: ". Keeps errno, allocates no memory and uses one write. */
#ifndef GPUSHARE_REPORT_H
#define GPUSHARE_REPORT_H

void report(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
