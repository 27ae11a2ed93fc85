/* The helper thread: hears the arbiter (arbiter.c), and opens and closes the gates by what it says (lease.c).
 *
 * It exists in every process that has joined, also in one that never launches: it is what finds the next agent, whose
 * limits page takes the place of the one that nobody can write any more. While nothing changes it sleeps. */
#ifndef GPUSHARE_HELPER_H
#define GPUSHARE_HELPER_H

#include <stdbool.h>
#include <stddef.h>

/* From now on it alone receives from the arbiter. False: it cannot be started; `sentence` says why, and what to do. */
bool helper_start(char *sentence, size_t sentence_size);

#endif
