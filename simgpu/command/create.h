/* A description made into files: one image a GPU. */
#ifndef SIMGPU_CREATE_H
#define SIMGPU_CREATE_H

#include "command/description.h"

/* All or nothing. `replace`: remove the GPUs that are in `directory` first; otherwise their presence is an error. */
bool create_gpus(const description_t *description, const char *directory, bool replace, char *error,
                 unsigned error_size);

#endif
