/* Copies and fills: what they do, and when. */
#ifndef SIMGPU_CUDA_COPY_H
#define SIMGPU_CUDA_COPY_H

#include "cuda_driver.h"

/* Rows and slices of bytes; pitches and slices are how far it is to the next. */
typedef struct {
    CUdeviceptr to, from;
    size_t width, height, depth;
    size_t to_pitch, from_pitch, to_slice, from_slice;
} copy_t;

/* Rows of elements of 1, 2 or 4 bytes. */
typedef struct {
    CUdeviceptr to;
    size_t pitch;
    unsigned value;
    unsigned element; /* bytes */
    size_t width;     /* elements */
    size_t height;
} fill_t;

void copy_do(void *copy);
void fill_do(void *fill);
/* Where an end of a copy is, as the program says. What is of a device must be memory that the driver knows. */
typedef enum { OF_HOST, OF_DEVICE, ANYWHERE } side_t;
bool copy_allowed(const copy_t *copy, side_t to, side_t from);
bool fill_allowed(const fill_t *fill);

/* The same of a three-dimensional one; NOT_SUPPORTED with arrays. */
CUresult copy_shape_3d(const CUDA_MEMCPY3D *three, copy_t *copy);

/* cuda_copy_batch.c: which of a batch each set of attributes begins at; and a stream that takes batches. */
bool batch_indexed(const size_t *first, size_t sets, size_t count);
CUresult batch_stream(CUstream stream);

/* Done before it returns, when all that was launched before has ended; or in a stream. */
CUresult work_now(work_t work, void *what);
CUresult work_in(work_t work, void *what, CUstream stream);

#endif
