/* Modules and kernels. A library is a module without a context; its kernels run in any context. */
#ifndef SIMGPU_CUDA_MODULE_H
#define SIMGPU_CUDA_MODULE_H

#include "cuda/abi/abi.h"
#include "cuda/device/handle.h"
#include "image/gpus.h"

/* The properties of a kernel that its name contains. */
typedef struct {
    uint64_t duration_ns;
    unsigned percent;    /* of the GPU */
    unsigned group_size; /* kernels of its group that must have begun before it runs; 0 or 1: no group */
    uint64_t key;        /* of the group; 0: only kernels of the same process */
    bool faults;         /* it accesses an invalid address at its end */
} kernel_t;

#define FIRST_DYNAMIC_BYTES 49152

struct CUfunc_st {
    handle_head_t head;
    CUfunction next;
    CUmodule module;
    char *name;
    kernel_t kernel;
    int dynamic_bytes; /* maximum dynamic shared memory at a launch */
    int carveout;
};

struct CUmod_st {
    handle_head_t head;
    CUcontext context; /* NULL: a library */
    uint64_t context_id;
    CUfunction functions;
    unsigned count;
};

/* `context`: NULL for a library. */
CUmodule module_make(CUcontext context);
void module_end(CUmodule module);

/* Return the kernel with this name, on that GPU. */
CUresult module_function(CUfunction *function, CUmodule module, const char *name, const gpu_t *gpu);

/* Return how long the kernel runs. False: the parameters should contain it, and do not. */
bool kernel_duration(CUfunction function, const gpu_t *gpu, void **parameters, uint64_t *duration_ns_p);

#endif
