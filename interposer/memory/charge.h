/* The bookkeeping around every call that allocates or frees: charge, call, record; on a free, refund.
 *
 * Memory is charged before the driver allocates it and refunded after the driver has freed it, so the container
 * never holds more than it is charged for. */
#ifndef GPUSHARE_CHARGE_H
#define GPUSHARE_CHARGE_H

#include <stdbool.h>

#include "cuda/device.h"

/* Charge the bytes. A result other than CUDA_SUCCESS is the allocation's result. A process's first refusal is
 * reported on stderr; charge_silently leaves that to the caller. */
CUresult charge_begin(const place_t *place, uint64_t bytes);
CUresult charge_silently(const place_t *place, uint64_t bytes);

/* Report, once per process, that these bytes do not fit. Returns CUDA_ERROR_OUT_OF_MEMORY. */
CUresult charge_refused(uint32_t gpu, uint64_t bytes);

/* Charge where the calling thread would allocate, and return that place. */
CUresult charge_current(place_t *place, uint64_t bytes);

/* Called after the real call with its result. Records the pointer on success and refunds the bytes otherwise. */
CUresult charge_end(const place_t *place, CUresult result, CUdeviceptr pointer, uint64_t bytes);

/* Record charged bytes under a key, which is a pointer or the address of an object in host memory. Returns false
 * if there is no memory for the record. */
bool charge_record(const place_t *place, uint64_t key, uint64_t bytes);

/* Around a real free. The first removes the record; the second refunds its bytes, or restores the record if the free
 * failed. */
typedef struct {
    CUdeviceptr pointer; /* 0: not a charged pointer */
    uint64_t bytes;
    uint64_t owner;
    uint32_t gpu;
    bool certain; /* the driver certainly held the bytes */
} charge_t;
charge_t charge_begin_free(CUdeviceptr pointer);
CUresult charge_end_free(const charge_t *charge, CUresult result);

/* Around a call that may end a context: detach its records, then refund them or attach them again. */
uint64_t charge_detach(CUcontext context);
void charge_drop(uint64_t token);
void charge_reattach(uint64_t token, CUcontext context);

#endif
