/* RTLD_DEEPBIND: an object loaded with it searches its own libraries first, so it would find libc's dlsym and the
 * driver's functions before ours. */
#ifndef GPUSHARE_DEEPBIND_H
#define GPUSHARE_DEEPBIND_H

#include <stdbool.h>

/* Our replacements, in assembly. */
typedef struct {
    void *dlsym, *dlopen;
} replaced_t;

/* Handle a dlopen with this flag. Returns true if it is done, with the result in `*answer_p`; false if the flag must
 * be dropped, because a file that would be loaded names CUDA or NVML, or because that cannot be decided. */
bool deepbind_open(const char *file, int mode, void **answer_p, const replaced_t *replaced);

#endif
