/* Monotonic time, and pauses during which no thread is cancelled: the caller may hold a lock. */
#ifndef GPUSHARE_CLOCK_H
#define GPUSHARE_CLOCK_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS_NS 1000000ull
#define FOREVER UINT64_MAX

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline struct timespec time_of(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

static inline void pause_ns(uint64_t ns) {
    const struct timespec pause = time_of(ns);
    (void)syscall(SYS_nanosleep, &pause, NULL);
}

#endif
