/* What a file needs that is not loaded yet, as it is on disk. */
#ifndef GPUSHARE_NEEDED_H
#define GPUSHARE_NEEDED_H

#include <stdbool.h>

/* Whether the file, or a library that would be loaded with it, names CUDA or NVML anywhere in its bytes, or nobody can
 * tell. `file`: a path. */
bool needed_may_use_cuda(const char *file);

#endif
