/* Creates the files of a node's GPUs from its description. */
#ifndef SIMGPU_CREATE_H
#define SIMGPU_CREATE_H

#include "command/description.h"

/* Create all files or none. `replace`: first remove the GPUs in `directory`; otherwise their presence is an error. */
bool create_gpus(const description_t *description, const char *directory, bool replace, char *error,
                 unsigned error_size);

#endif
