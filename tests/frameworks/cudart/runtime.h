/* A small libcudart.so.12 for programs that link it dynamically, such as PyTorch: the public runtime API on the public
 * driver API. It is for tests on simulated GPUs, where NVIDIA's own runtime does not start: it asks the driver to prove
 * that it is NVIDIA's.
 *
 * Written from the headers alone. A function here makes the thread's device ready, calls the driver, and remembers the
 * error for cudaGetLastError; the numbers of errors, attributes and flags are the driver's. */
#ifndef CUDART_RUNTIME_H
#define CUDART_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define DRIVER_API 12000 /* the forms of driver functions that the headers declare */
#define RUNTIME_API 12060
#define MAX_DEVICES 64

/* runtime.c: found once, by cuGetProcAddress as the real runtime does; NULL: the driver has none of that name. */
void *driver_find(_Atomic(void *) *found, const char *name);

/* DRIVER(cuMemAlloc, &pointer, bytes) calls that function of the driver. The headers make cuMemAlloc a macro for its
 * newest form, whose type is wanted, while the driver wants the plain name: so it is spelt before macros are replaced.
 */
#define DRIVER(name, ...) DRIVER_CALL(name, #name, ##__VA_ARGS__)
#define DRIVER_CALL(name, text, ...)                                                                                   \
    ({                                                                                                                 \
        static _Atomic(void *) found_;                                                                                 \
        __typeof__(&name) function_ = (__typeof__(&name))driver_find(&found_, text);                                   \
        function_ != NULL ? function_(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND;                                             \
    })

/* Remembered, and given back. */
cudaError_t runtime_result(CUresult result);
/* cuInit has been done. */
CUresult runtime_begin(void);
/* The thread's device has its primary context current. */
CUresult runtime_ready(void);
int runtime_device(void);

/* Most functions: one call of the driver, when the device is ready. */
#define RUN(name, ...)                                                                                                 \
    ({                                                                                                                 \
        CUresult ready_ = runtime_ready();                                                                             \
        runtime_result(ready_ != CUDA_SUCCESS ? ready_ : DRIVER_CALL(name, #name, ##__VA_ARGS__));                     \
    })

#endif
