/* How this process comes to its part of the container's share, and to the thread that hears the arbiter for it. */
#ifndef GPUSHARE_JOIN_H
#define GPUSHARE_JOIN_H

#include <stdbool.h>

/* For every hook, before it uses anything of the share. True once this process has its pages and its helper thread.
 * False: a line on stderr has said why, once; the next call tries again. The child of a fork joins for itself. */
bool session_join(void);

#endif
