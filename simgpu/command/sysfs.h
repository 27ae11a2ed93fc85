/* The kernel's files about a node's GPUs, for programs that read below NVML. */
#ifndef SIMGPU_SYSFS_H
#define SIMGPU_SYSFS_H

#include <stdbool.h>

#include "image/gpus.h"

/* Write sys/bus/pci/devices, proc/modules and proc/driver/nvidia-caps under `root`, over existing files. */
bool sysfs_write(const gpu_t *gpus, unsigned count, const char *root, char *error, unsigned error_size);

#endif
