/* MIG devices, as the calls about devices need them. */
#ifndef SIMGPU_NVML_MIG_H
#define SIMGPU_NVML_MIG_H

#include "mig.h"
#include "nvml_abi.h"

/* The compute instance that a checked handle of a MIG device stands for. */
const image_part_t *nvml_mig_part(nvmlDevice_t mig);

nvmlReturn_t nvml_mig_result(mig_result_t result);

#endif
