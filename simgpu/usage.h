/* How busy a GPU was. */
#ifndef SIMGPU_USAGE_H
#define SIMGPU_USAGE_H

#include "image.h"

/* A kernel ran from then to then; both lie in the past. */
void usage_add(image_t *image, uint64_t start_ns, uint64_t end_ns);

/* How much of the last second kernels ran. Takes no lock: what nobody has looked at yet is guessed from the queues. */
unsigned usage_percent(const image_t *image, uint64_t now_ns);

#endif
