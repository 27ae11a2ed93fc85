/* An upper bound for the memory of an array. No CUDA functions.
 *
 * GPUs store arrays in blocks, which drivers do not document: rows of 64 bytes in groups of eight, and blocks of up
 * to 16 groups in height and 32 in depth, depending on the array's size. */
#ifndef GPUSHARE_ARRAY_SIZE_H
#define GPUSHARE_ARRAY_SIZE_H

#include "base/abi.h"

uint64_t array_max_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);

#endif
