/* What every hook that allocates or frees does around the real call: charge first, remember what was had, refund after.
 *
 * An allocation is charged before the driver is asked and refunded after the driver has it back, so at no moment does
 * the container hold more than it is charged for. */
#ifndef GPUSHARE_CHARGE_H
#define GPUSHARE_CHARGE_H

#include <stdbool.h>

#include "cuda/device.h"

/* SUCCESS: charged. Otherwise what the application gets as the allocation's result. The first refusal of a process is a
 * line on stderr; the second function leaves that to its caller. */
CUresult charge_begin(const place_t *place, uint64_t bytes);
CUresult charge_silently(const place_t *place, uint64_t bytes);

/* Reports, as above, that the GPU had no room for these bytes. Returns CUDA_ERROR_OUT_OF_MEMORY. */
CUresult charge_refused(uint32_t gpu, uint64_t bytes);

/* Both: where the calling thread would have the memory. */
CUresult charge_current(place_t *place, uint64_t bytes);

/* After the real call: `result` is its result. On success the pointer is remembered; otherwise the bytes are refunded.
 */
CUresult charge_end(const place_t *place, CUresult result, CUdeviceptr pointer, uint64_t bytes);

/* Remembers what was charged by a key of the caller's: a pointer, or the address of something in the host's memory.
 * False: there is no memory to remember it in. */
bool charge_record(const place_t *place, uint64_t key, uint64_t bytes);

/* Around a real free: what the pointer was charged is taken out, then refunded, or put back when the free failed. */
typedef struct {
    CUdeviceptr pointer; /* 0: not one that was charged */
    uint64_t bytes;
    uint64_t owner;
    uint32_t gpu;
    bool certain; /* it was there for certain */
} charge_t;
charge_t charge_begin_free(CUdeviceptr pointer);
CUresult charge_end_free(const charge_t *charge, CUresult result);

/* Around the end of a context: first its allocations are set aside, then they are dropped or given back to it. */
uint64_t charge_detach(CUcontext context);
void charge_drop(uint64_t token);
void charge_reattach(uint64_t token, CUcontext context);

#endif
