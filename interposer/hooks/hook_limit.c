/* Memory that a context reserves for its kernels: the heap for malloc and the buffer for printf. The program sets
 * the size, so it is charged like an allocation. The defaults count as the driver's own memory. */
#include "cuda/device.h"
#include "driver/driver.h"
#include "memory/charge.h"
#include "session/join.h"
#include "share/share.h"

#define DEFAULT_HEAP_BYTES (8u << 20)
#define DEFAULT_FIFO_BYTES (1u << 20)

/* A context is an object in host memory, so its address and the next few serve as keys. */
static CUdeviceptr key_of(CUcontext context, int limit) {
    return (CUdeviceptr)(uintptr_t)context + (CUdeviceptr)limit;
}

CUresult cuCtxSetLimit(int limit, size_t bytes) {
    place_t place;
    if (limit != CU_LIMIT_MALLOC_HEAP_SIZE && limit != CU_LIMIT_PRINTF_FIFO_SIZE)
        return REAL(cuCtxSetLimit)(limit, bytes);
    if (!session_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    CUresult result = device_place(&place);
    place.deferred = true; /* the driver allocates when kernels need it */
    if (result != CUDA_SUCCESS || place.context == NULL)
        return result == CUDA_SUCCESS ? REAL(cuCtxSetLimit)(limit, bytes) : result;
    uint64_t default_bytes = limit == CU_LIMIT_MALLOC_HEAP_SIZE ? DEFAULT_HEAP_BYTES : DEFAULT_FIFO_BYTES;
    uint64_t wanted_bytes = bytes > default_bytes ? bytes : 0;
    charge_t old = charge_begin_free(key_of(place.context, limit));
    uint64_t more_bytes = wanted_bytes > old.bytes ? wanted_bytes - old.bytes : 0;
    result = charge_begin(&place, more_bytes);
    if (result != CUDA_SUCCESS)
        return charge_end_free(&old, result);
    result = REAL(cuCtxSetLimit)(limit, bytes);
    if (result != CUDA_SUCCESS) {
        (void)charge_end(&place, result, 0, more_bytes);
        return charge_end_free(&old, result);
    }
    if (wanted_bytes < old.bytes)
        share_refund(place.gpu, old.bytes - wanted_bytes);
    return charge_end(&place, result, key_of(place.context, limit), wanted_bytes);
}
