/* What the kernel tells of a node's GPUs below NVML, as files: some programs look there as well. */
#ifndef SIMGPU_SYSFS_H
#define SIMGPU_SYSFS_H

#include <stdbool.h>

#include "image/gpus.h"

/* Writes sys/bus/pci/devices, proc/modules and proc/driver/nvidia-caps under `root`, over what is there. */
bool sysfs_write(const gpu_t *gpus, unsigned count, const char *root, char *error, unsigned error_size);

#endif
