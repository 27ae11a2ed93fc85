/* A small libcudart.so.12 for programs that link it dynamically, such as PyTorch: the public runtime API on the
 * public driver API. It serves tests on simulated GPUs, where NVIDIA's runtime does not start, because it asks the
 * driver to prove that it is NVIDIA's.
 *
 * Written from the headers alone. A function here makes the thread's device ready, calls the driver, and stores the
 * error for cudaGetLastError; the numbers of errors, attributes and flags are the driver's. */
#ifndef CUDART_RUNTIME_H
#define CUDART_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define DRIVER_API 12000 /* the versions of driver functions that the headers declare */
#define RUNTIME_API 12060
#define MAX_DEVICES 64

/* In runtime.c: looked up once by cuGetProcAddress, as the real runtime does; NULL if the driver lacks it. */
void *driver_find(_Atomic(void *) *found, const char *name);

/* DRIVER(cuMemAlloc, &pointer, bytes) calls that driver function. The headers define cuMemAlloc as a macro for its
 * newest version. The type must be the newest version's, the name the plain one, so it is stringified before macro
 * expansion. */
#define DRIVER(name, ...) DRIVER_CALL(name, #name, ##__VA_ARGS__)
#define DRIVER_CALL(name, text, ...)                                                                                   \
    ({                                                                                                                 \
        static _Atomic(void *) found_;                                                                                 \
        __typeof__(&name) function_ = (__typeof__(&name))driver_find(&found_, text);                                   \
        function_ != NULL ? function_(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND;                                             \
    })

/* Store the error and return it. */
cudaError_t runtime_result(CUresult result);
/* Ensure that cuInit was called. */
CUresult runtime_begin(void);
/* Make the primary context of the thread's device current. */
CUresult runtime_ready(void);
int runtime_device(void);

/* Most functions are one driver call on a ready device. */
#define RUN(name, ...)                                                                                                 \
    ({                                                                                                                 \
        CUresult ready_ = runtime_ready();                                                                             \
        runtime_result(ready_ != CUDA_SUCCESS ? ready_ : DRIVER_CALL(name, #name, ##__VA_ARGS__));                     \
    })

#endif
