#include "memory/array_size.h"

#include <stdbool.h>

#define ROW_BYTES 64u
#define ROWS 8u
#define MAX_ROWS 128u
#define MAX_SLICES 32u
#define UNKNOWN_BYTES 16u /* the largest possible element */

typedef struct {
    int first, last; /* range of formats */
    unsigned bytes;  /* of an element, or of a block */
    unsigned block;  /* width and height of a block in elements */
    bool per_channel;
} format_t;

static const format_t formats[] = {
    {0x01, 0x01, 1, 1, true},   {0x08, 0x08, 1, 1, true},                            /* 8-bit integers */
    {0x02, 0x02, 2, 1, true},   {0x09, 0x09, 2, 1, true},  {0x10, 0x10, 2, 1, true}, /* 16-bit, and half precision */
    {0x03, 0x03, 4, 1, true},   {0x0a, 0x0a, 4, 1, true},  {0x20, 0x20, 4, 1, true}, /* 32-bit, and single precision */
    {0x91, 0x92, 8, 4, false},  {0x97, 0x98, 8, 4, false}, {0x93, 0x96, 16, 4, false}, /* block compression */
    {0x99, 0x9e, 16, 4, false}, {0xc0, 0xc0, 1, 1, false}, {0xc1, 0xc1, 2, 1, false},  /* normalised */
    {0xc2, 0xc2, 4, 1, false},  {0xc3, 0xc3, 2, 1, false}, {0xc4, 0xc4, 4, 1, false},  {0xc5, 0xc5, 8, 1, false},
    {0xc6, 0xc6, 1, 1, false},  {0xc7, 0xc7, 2, 1, false}, {0xc8, 0xc8, 4, 1, false},  {0xc9, 0xc9, 2, 1, false},
    {0xca, 0xca, 4, 1, false},  {0xcb, 0xcb, 8, 1, false}, {0x50, 0x50, 4, 1, false},
};

static uint64_t product(uint64_t left, uint64_t right) {
    uint64_t bytes;
    return __builtin_mul_overflow(left, right, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t round_up(uint64_t value, uint64_t unit) {
    return value > UINT64_MAX - unit ? UINT64_MAX : (value + unit - 1) / unit * unit;
}

/* Round up to whole blocks, whose size doubles up to `max_block` as the array grows. */
static uint64_t in_blocks(uint64_t value, uint64_t min_block, uint64_t max_block) {
    uint64_t block = min_block;
    while (block < value && block < max_block)
        block *= 2;
    return round_up(value, block);
}

static format_t format_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    for (unsigned i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (descriptor->Format >= formats[i].first && descriptor->Format <= formats[i].last)
            return formats[i];
    }
    return (format_t){.bytes = UNKNOWN_BYTES, .block = 1};
}

static uint64_t at_level(size_t extent, unsigned level) {
    return extent >> level > 0 ? extent >> level : 1;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level) {
    const format_t format = format_of(descriptor);
    bool layered = (descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    uint64_t columns = (at_level(descriptor->Width, level) + format.block - 1) / format.block;
    uint64_t rows = (at_level(descriptor->Height, level) + format.block - 1) / format.block;
    uint64_t element_bytes = format.bytes * (format.per_channel ? descriptor->NumChannels : 1);
    uint64_t slices =
        layered ? at_level(descriptor->Depth, 0) : in_blocks(at_level(descriptor->Depth, level), 1, MAX_SLICES);
    return product(product(round_up(product(columns, element_bytes), ROW_BYTES), in_blocks(rows, ROWS, MAX_ROWS)),
                   slices);
}

uint64_t array_max_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
    uint64_t bytes = 0;
    for (unsigned level = 0; level < levels && level < 64; level++) {
        if (__builtin_add_overflow(bytes, level_bytes(descriptor, level), &bytes))
            return UINT64_MAX;
        if (descriptor->Width >> level <= 1 && descriptor->Height >> level <= 1 && descriptor->Depth >> level <= 1)
            break; /* the last level */
    }
    return bytes;
}
