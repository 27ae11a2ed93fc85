/* Lookup of MIG devices, for NVML calls on devices. */
#ifndef SIMGPU_NVML_MIG_H
#define SIMGPU_NVML_MIG_H

#include "nvml/abi.h"
#include "state/mig.h"

/* Return the compute instance behind a checked handle of a MIG device. */
const image_compute_instance_t *nvml_mig_compute_instance(nvmlDevice_t mig);

nvmlReturn_t nvml_mig_result(mig_result_t result);

#endif
