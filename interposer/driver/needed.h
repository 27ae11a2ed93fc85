/* The libraries that loading a file would load with it, as they are on disk. */
#ifndef GPUSHARE_NEEDED_H
#define GPUSHARE_NEEDED_H

#include <stdbool.h>

/* Whether the bytes of the file at this path, or of a library that would be loaded with it, name CUDA or NVML. Also
 * true if that cannot be decided. */
bool needed_may_use_cuda(const char *file);

#endif
