/* Memory that this process has freed but that may still exist: other processes may hold exported memory, and blocks
 * of a destroyed pool are freed in stream order, while the pool can no longer be queried.
 *
 * It stays charged to this process until the agent finds that it is gone. CUDA does not report which processes hold
 * imported memory. The driver counts memory for one of its holders: after its creator frees it, for an importer in
 * any container, or for no process at all while only a file descriptor refers to it (open-gpu-kernel-modules,
 * memDestruct: "Choose the new owner"; descriptors belong to an internal client of the kernel). So NVML's figures
 * per process prove nothing. The proof is the GPU's total use: the agent subtracts what processes certainly hold
 * (quota.h), and the rest is an upper bound for everything held unseen.
 *
 * The bytes in question were freed before the request, and the agent measures after it; from then on they can only
 * become fewer. So a refund is correct for any importing process, with measurements of any age, and during other
 * allocations. */
#ifndef GPUSHARE_LINGERING_H
#define GPUSHARE_LINGERING_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/cache.h"

/* Add charged bytes that may still exist. */
void lingering_add(uint32_t gpu, uint64_t bytes);

/* Ask whether they are gone and refund those that are. Waits for the arbiter, so no lock of a cache may be held.
 * Returns false if nothing was refunded. */
bool lingering_refund(uint32_t gpu);

/* The same as cache_make_room, but from ATTEMPT_TRIMMED on it also asks for lingering bytes. */
void lingering_make_room(uint32_t gpu, attempt_t attempt);

/* Ask at most once a second, for programs that query free memory. */
void lingering_poll(uint32_t gpu);

#endif
