/* One line on stderr, with "gpushare: " before it. Keeps errno, allocates nothing, and is one write. */
#ifndef GPUSHARE_REPORT_H
#define GPUSHARE_REPORT_H

void report(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
