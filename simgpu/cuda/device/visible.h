#ifndef SIMGPU_CUDA_VISIBLE_H
#define SIMGPU_CUDA_VISIBLE_H

#include "image/gpus.h"

/* Return the devices of this process. A GPU in MIG mode is not a device; its MIG devices are. */
unsigned visible_devices(gpu_t *gpus, unsigned present, const char *served, gpu_t **devices);
const image_compute_instance_t *visible_compute_instance(const gpu_t *gpu);
const image_instance_t *visible_instance(const gpu_t *gpu);

#endif
