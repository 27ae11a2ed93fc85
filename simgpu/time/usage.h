/* How busy a GPU was, and with whose kernels. */
#ifndef SIMGPU_USAGE_H
#define SIMGPU_USAGE_H

#include <stdbool.h>

#include "image/image.h"

/* A kernel ran from then to then, which both lie in the past: for the buckets of the GPU, or of a process. */
void usage_add(_Atomic uint64_t *buckets, uint64_t start_ns, uint64_t end_ns);

/* How much of the last second kernels ran. Takes no lock: what nobody has looked at yet is guessed from the queues. */
unsigned usage_percent(const image_t *image, uint64_t now_ns);

/* How much of the time since then the kernels of the process in that slot ran, as far as it is remembered: 15 seconds.
 * Of a moment less than a second ago, how much of the last second. */
unsigned usage_percent_of(const image_t *image, unsigned slot, uint64_t since_ns, uint64_t now_ns);

#endif
