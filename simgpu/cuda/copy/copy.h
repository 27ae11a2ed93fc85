/* Copies and fills: what they do, and when. */
#ifndef SIMGPU_CUDA_COPY_H
#define SIMGPU_CUDA_COPY_H

#include <stdbool.h>

#include "cuda/graph/work.h"

/* The kind of memory at one end of a copy, as the caller says. Device memory must be known to the driver. */
typedef enum { SIDE_HOST, SIDE_DEVICE, SIDE_ANY } side_t;
bool copy_allowed(const copy_t *copy, side_t to, side_t from);
bool fill_allowed(const fill_t *fill);

/* Do the work synchronously after all earlier work, or in a stream. */
CUresult work_now(work_t work, void *what);
CUresult work_in(work_t work, void *what, CUstream stream);

/* Translate a three-dimensional copy. CUDA_ERROR_NOT_SUPPORTED if it uses arrays. */
CUresult copy_shape_3d(const CUDA_MEMCPY3D *three, copy_t *copy);

#endif
