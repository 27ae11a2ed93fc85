/* How busy a GPU was. */
#ifndef SIMGPU_USAGE_H
#define SIMGPU_USAGE_H

#include <stdbool.h>

#include "image.h"

/* A kernel ran from then to then; both lie in the past. */
void usage_add(image_t *image, uint64_t start_ns, uint64_t end_ns);

/* How much of the last second kernels ran. Takes no lock: what nobody has looked at yet is guessed from the queues. */
unsigned usage_percent(const image_t *image, uint64_t now_ns);

/* Whether the process in that slot ever had kernels to run, and whether it had when somebody last looked. */
bool usage_has_worked(const image_t *image, unsigned slot);
bool usage_is_working(const image_t *image, unsigned slot);

#endif
