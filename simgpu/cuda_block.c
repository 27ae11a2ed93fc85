#include "cuda_block.h"

#include <pthread.h>
#include <stdlib.h>

#include "slots.h"

#define UNIT_BYTES 512u /* of small allocations */

struct block {
    block_t *next;
    gpu_t *gpu;
    uint64_t used_bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static block_t *blocks;

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static bool is_small(const gpu_t *gpu, uint64_t bytes) {
    return bytes <= gpu->image->block_bytes / 2;
}

/* With the lock held: one that has room, or a new one. Only amounts are simulated: where in it does not matter. */
static block_t *find(gpu_t *gpu, uint64_t bytes) {
    for (block_t *block = blocks; block != NULL; block = block->next) {
        if (block->gpu == gpu && gpu->image->block_bytes - block->used_bytes >= bytes)
            return block;
    }
    block_t *block = calloc(1, sizeof *block);
    if (block == NULL || !slots_charge(gpu, gpu->image->block_bytes)) {
        free(block);
        return NULL;
    }
    *block = (block_t){.next = blocks, .gpu = gpu};
    blocks = block;
    return block;
}

bool block_charge(gpu_t *gpu, uint64_t bytes, block_t **shared) {
    *shared = NULL;
    if (gpu->image->block_bytes == 0)
        return slots_charge(gpu, bytes);
    if (!is_small(gpu, bytes))
        return slots_charge(gpu, round_up(bytes, gpu->image->block_bytes));
    pthread_mutex_lock(&mutex);
    *shared = find(gpu, round_up(bytes, UNIT_BYTES));
    if (*shared != NULL)
        (*shared)->used_bytes += round_up(bytes, UNIT_BYTES);
    pthread_mutex_unlock(&mutex);
    return *shared != NULL;
}

/* With the lock held. */
static void give_back(block_t *block) {
    block_t **link = &blocks;
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    slots_refund(block->gpu, block->gpu->image->block_bytes);
    free(block);
}

void block_refund(gpu_t *gpu, uint64_t bytes, block_t *shared) {
    if (shared == NULL) {
        slots_refund(gpu, gpu->image->block_bytes != 0 ? round_up(bytes, gpu->image->block_bytes) : bytes);
        return;
    }
    pthread_mutex_lock(&mutex);
    shared->used_bytes -= round_up(bytes, UNIT_BYTES);
    if (shared->used_bytes == 0)
        give_back(shared);
    pthread_mutex_unlock(&mutex);
}
