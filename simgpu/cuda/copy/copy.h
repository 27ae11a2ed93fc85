/* Copies and fills: what they do, and when. */
#ifndef SIMGPU_CUDA_COPY_H
#define SIMGPU_CUDA_COPY_H

#include <stdbool.h>

#include "cuda/graph/work.h"

/* Where an end of a copy is, as the program says. What is of a device must be memory that the driver knows. */
typedef enum { SIDE_HOST, SIDE_DEVICE, SIDE_ANY } side_t;
bool copy_allowed(const copy_t *copy, side_t to, side_t from);
bool fill_allowed(const fill_t *fill);

/* Done before it returns, when all that was launched before has ended; or in a stream. */
CUresult work_now(work_t work, void *what);
CUresult work_in(work_t work, void *what, CUstream stream);

/* The same of a three-dimensional one; NOT_SUPPORTED with arrays. */
CUresult copy_shape_3d(const CUDA_MEMCPY3D *three, copy_t *copy);

#endif
