#ifndef SIMGPU_CUDA_VMM_H
#define SIMGPU_CUDA_VMM_H

#include "cuda/memory/place.h"

/* Add or remove a reference to the memory of a handle. False: there is no such handle. */
bool vmm_retain(CUmemGenericAllocationHandle handle);
void vmm_release(CUmemGenericAllocationHandle handle);

bool vmm_find(CUdeviceptr address, memory_place_t *place);

#endif
