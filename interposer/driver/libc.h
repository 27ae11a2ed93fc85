/* Finds libc's own functions, even if other preloaded libraries replace them. */
#ifndef GPUSHARE_LIBC_H
#define GPUSHARE_LIBC_H

/* Return the function of this name in libc, or in libdl before glibc 2.34, else NULL. */
void *libc_function(const char *name);

#endif
