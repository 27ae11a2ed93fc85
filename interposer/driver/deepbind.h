/* RTLD_DEEPBIND: an object that is loaded so finds its own libraries' functions before everybody else's, libc's dlsym
 * and the driver's functions before ours. */
#ifndef GPUSHARE_DEEPBIND_H
#define GPUSHARE_DEEPBIND_H

#include <stdbool.h>

/* Ours, in assembly. */
typedef struct {
    void *dlsym, *dlopen;
} replaced_t;

/* dlopen with this flag in its mode. True: done, `*answer_p` is the result. False: not with this flag, for something
 * that would be loaded names CUDA or NVML, or nobody can tell. */
bool deepbind_open(const char *file, int mode, void **answer_p, const replaced_t *replaced);

#endif
