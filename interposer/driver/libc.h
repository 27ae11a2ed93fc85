/* Functions of libc itself, past whatever is preloaded. */
#ifndef GPUSHARE_LIBC_H
#define GPUSHARE_LIBC_H

/* The function of this name in libc, or before glibc 2.34 in libdl; NULL: there is none. */
void *libc_function(const char *name);

#endif
