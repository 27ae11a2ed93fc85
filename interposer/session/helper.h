/* The helper thread. It receives the arbiter's messages (arbiter.c) and opens and closes the gates accordingly
 * (lease.c).
 *
 * Every process that has joined has it, even one that never launches, because it finds the next agent and that
 * agent's limits page. It sleeps while nothing changes. */
#ifndef GPUSHARE_HELPER_H
#define GPUSHARE_HELPER_H

#include <stdbool.h>
#include <stddef.h>

/* Start the thread, which from then on is the only receiver of the arbiter's messages. On failure `sentence` gets
 * the reason and the remedy. */
bool helper_start(char *sentence, size_t sentence_size);

#endif
