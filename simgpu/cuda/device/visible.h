#ifndef SIMGPU_CUDA_VISIBLE_H
#define SIMGPU_CUDA_VISIBLE_H

#include "image/gpus.h"

/* cuda_visible.c: which devices there are for this process. A GPU in MIG mode is none, its MIG devices are. */
unsigned visible_devices(gpu_t *gpus, unsigned present, gpu_t **devices);
const image_compute_instance_t *visible_compute_instance(const gpu_t *gpu);
const image_instance_t *visible_instance(const gpu_t *gpu);

#endif
