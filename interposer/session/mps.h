/* A share with isolation mps: the process must be a client of its GPU's MPS daemon, with the share's percentage. */
#ifndef GPUSHARE_MPS_H
#define GPUSHARE_MPS_H

#include <stdbool.h>

#include "base/abi.h"

/* Before the driver starts: set and remove the variables that it reads. No-op for other isolations. Returns false,
 * after a report, without memory for them. */
bool mps_prepare(void);

/* After the driver has started: return CUDA_SUCCESS if the process may go on. Otherwise the reason was reported, and
 * all later calls that would launch or allocate are refused. */
CUresult mps_check(void);

#endif
