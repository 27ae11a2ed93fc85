/* How much memory an array takes at most. No CUDA functions.
 *
 * Arrays lie in the GPU's memory in blocks, which drivers do not describe: rows of 64 bytes, eight of them together,
 * and of these up to 16 in height and 32 in depth, as many as the array has use for. */
#ifndef GPUSHARE_ARRAY_SIZE_H
#define GPUSHARE_ARRAY_SIZE_H

#include "base/abi.h"

uint64_t array_max_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);

#endif
