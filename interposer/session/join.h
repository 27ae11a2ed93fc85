/* Joining the container's share: the connection, the pages and the helper thread. */
#ifndef GPUSHARE_JOIN_H
#define GPUSHARE_JOIN_H

#include <stdbool.h>

/* Called by every hook before it uses the share. Returns true once the process has its pages and its helper thread.
 * Otherwise the reason was reported once, and the next call tries again. A forked child joins separately. */
bool session_join(void);

/* Refuse everything from now on: session_join returns false. */
void session_refuse(void);

#endif
