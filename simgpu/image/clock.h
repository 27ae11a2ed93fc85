/* CLOCK_MONOTONIC. All processes of a node share it, so its values can be compared across processes. */
#ifndef SIMGPU_CLOCK_H
#define SIMGPU_CLOCK_H

#include <stdint.h>

uint64_t clock_now_ns(void);

/* Sleep until that time. Returns at once if it has passed. */
void clock_sleep_until(uint64_t until_ns);

#endif
