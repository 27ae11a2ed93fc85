/* How busy a GPU was, and with which processes' kernels. */
#ifndef SIMGPU_USAGE_H
#define SIMGPU_USAGE_H

#include <stdbool.h>

#include "image/image.h"

/* Record that a kernel ran in this period, which lies in the past, in the buckets of the GPU or of a process. */
void usage_add(_Atomic uint64_t *buckets, uint64_t start_ns, uint64_t end_ns);

/* For how much of the last second kernels ran. Takes no lock: time after the last update is estimated from the
 * queues. */
unsigned usage_percent(const image_t *image, uint64_t now_ns);

/* For how much of the time since `since_ns` the kernels of the process in that slot ran. Covers at most 15 seconds
 * and at least one. */
unsigned usage_percent_of_slot(const image_t *image, unsigned slot, uint64_t since_ns, uint64_t now_ns);

#endif
