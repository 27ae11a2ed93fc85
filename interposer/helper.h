/* The helper thread: asks the arbiter for leases, opens and closes the gates, and says when the GPU is free again.
 *
 * It exists from the first launch that finds its gate closed. While nothing changes it sleeps. */
#ifndef GPUSHARE_HELPER_H
#define GPUSHARE_HELPER_H

/* Somebody waits at a gate. Starts the thread, once. */
void helper_wake(void);

/* Once the thread receives what the arbiter sends: ask for the bytes of dead processes, and wait until they are back,
 * for up to a second. */
void helper_reclaim(void);

#endif
