/* Memory that this process has let go, and that may be there still: others have it with whom it was shared, or it is
 * freed when a stream comes to that, of a pool that has been destroyed and cannot be asked.
 *
 * It stays charged to this process until the agent has looked and found that nobody has it. CUDA tells nobody who holds
 * what he was given. The driver counts memory for one of those who hold it: when the one that made it lets it go, for
 * one of those who imported it, in whatever container, or, while it is in a descriptor only, for no process at all
 * (open-gpu-kernel-modules, memDestruct: "Choose the new owner"; descriptors belong to a client of the kernel's own).
 * So what NVML says of processes proves nothing. Proof is what the GPU has in use altogether: from that the agent takes
 * away what is there for certain (quota.h), and what is left is an upper bound of all that anybody may hold unseen.
 *
 * What is asked about was let go before the question, and the agent looks after it; later it can only become less. So
 * whoever imported it, however old other measurements are, and whatever is allocated meanwhile: what is dropped here is
 * not on the GPU any more. */
#ifndef GPUSHARE_LINGERING_H
#define GPUSHARE_LINGERING_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/cache.h"

/* Charged bytes that others may have. */
void lingering_add(uint32_t gpu, uint64_t bytes);

/* Ask whether they are gone, and refund what is. May take as long as the arbiter; with no lock of a keeper held. False:
 * nothing was refunded. */
bool lingering_refund(uint32_t gpu);

/* As keeper_make_room; from ATTEMPT_TRIMMED on it is asked, too. */
void lingering_make_room(uint32_t gpu, attempt_t attempt);

/* Ask when it has not been asked for a moment: for who wants to know what is free. */
void lingering_poll(uint32_t gpu);

#endif
