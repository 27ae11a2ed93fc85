/* The helper thread: asks the arbiter for leases, opens and closes the gates, and says when the GPU is free again.
 *
 * It exists in every process that has joined, also in one that never launches: it is what finds the next agent, whose
 * limits page takes the place of the one that nobody can write any more. While nothing changes it sleeps. */
#ifndef GPUSHARE_HELPER_H
#define GPUSHARE_HELPER_H

/* Once this process has joined; more often does nothing. */
void helper_start(void);

/* Somebody waits at a gate. */
void helper_wake(void);

/* Ask for the bytes of dead processes, and wait until they are back, for up to a second. */
void helper_reclaim(void);

#endif
