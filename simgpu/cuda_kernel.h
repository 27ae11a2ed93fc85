/* What modules and kernels are made of. A library is a module without a context; its kernels are functions of any. */
#ifndef SIMGPU_CUDA_KERNEL_H
#define SIMGPU_CUDA_KERNEL_H

#include "cuda_driver.h"

#define FIRST_DYNAMIC_BYTES 49152

struct CUfunc_st {
    handle_head_t head;
    CUfunction next;
    CUmodule module;
    char *name;
    kernel_t kernel;
    bool fails;
    int dynamic_bytes; /* the most shared memory that it may be given at a launch */
    int carveout;
};

struct CUmod_st {
    handle_head_t head;
    CUcontext context; /* NULL: it is a library */
    uint64_t context_id;
    CUfunction functions;
    unsigned count;
};

CUmodule module_make(CUcontext context);
void module_end(CUmodule module);
/* cuda_function.c: what a kernel is like on a device. */
CUresult function_attribute(int *value, int attribute, CUfunction function, CUdevice device);
CUresult function_set_attribute(CUfunction function, int attribute, int value);

/* The one of that name, on such a GPU. */
CUresult module_function(CUfunction *function, CUmodule module, const char *name, const gpu_t *gpu);

#endif
