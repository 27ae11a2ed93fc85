/* What can go wrong with a GPU, made to happen: for `simgpu fail` and `simgpu heal`. */
#ifndef SIMGPU_FAILURE_H
#define SIMGPU_FAILURE_H

#include <stdbool.h>

#include "gpus.h"

/* `what` is "xid=N", "ecc", "lost" or "mute". False: it is none of these. */
bool failure_inject(gpu_t *gpu, const char *what);

/* Undo what lasts: lost, mute, ECC. Events that happened stay in the past. */
void failure_heal(gpu_t *gpu);

#endif
