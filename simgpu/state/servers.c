#define _GNU_SOURCE
#include "state/servers.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "state/locks.h"

#define FIRST_CONTAINING_DRIVER 610
#define LAST_WEDGING_CUDA 13050u

unsigned servers_add(gpu_t *gpu, uint64_t id) {
    for (unsigned i = 0; i < IMAGE_SERVERS; i++) {
        if (server_is_held(gpu, i) || !server_lock(gpu, i))
            continue;
        gpu->image->servers[i].wedged = 0;
        gpu->image->servers[i].id = id;
        return i + 1;
    }
    return 0;
}

void servers_remove(gpu_t *gpu, unsigned server) {
    gpu->image->servers[server - 1].id = 0;
    server_unlock(gpu, server - 1);
}

unsigned servers_find(const gpu_t *gpu, uint64_t id) {
    for (unsigned i = 0; i < IMAGE_SERVERS; i++) {
        if (id != 0 && gpu->image->servers[i].id == id && server_is_held(gpu, i))
            return i + 1;
    }
    return 0;
}

bool servers_any(const gpu_t *gpu) {
    for (unsigned i = 0; i < IMAGE_SERVERS; i++) {
        if (gpu->image->servers[i].id != 0 && server_is_held(gpu, i))
            return true;
    }
    return false;
}

static bool is_live_client(const gpu_t *gpu, unsigned index, uint64_t server) {
    pid_t holder;
    return gpu->image->slots[index].mps == server && ((int)index == gpu->slot || slot_is_held(gpu, index, &holder));
}

bool servers_have_fault(const gpu_t *gpu, unsigned server, unsigned partition) {
    bool contained = partition != 0 && servers_contain_faults(gpu->image);
    for (unsigned i = 0; i < gpu->image->slots_high; i++) {
        const image_slot_t *slot = &gpu->image->slots[i];
        if (slot->ended == ENDED_BY_FAULT && (!contained || slot->partition == partition) &&
            is_live_client(gpu, i, server))
            return true;
    }
    return false;
}

bool servers_add_context(gpu_t *gpu, unsigned max) {
    unsigned count = 0;
    gpu_lock_changes(gpu);
    for (unsigned i = 0; i < gpu->image->slots_high; i++)
        count += is_live_client(gpu, i, gpu->mps) ? gpu->image->slots[i].contexts : 0;
    if (count < max)
        gpu->image->slots[gpu->slot].contexts++;
    gpu_unlock_changes(gpu);
    return count < max;
}

void servers_drop_context(gpu_t *gpu) {
    if (gpu->mps != 0)
        gpu->image->slots[gpu->slot].contexts--;
}

void servers_end_client(image_t *image, unsigned slot, ended_t why) {
    uint32_t not_yet = 0;
    if (atomic_compare_exchange_strong(&image->slots[slot].ended, &not_yet, (uint32_t)why))
        image->slots[slot].memory_bytes = 0;
}

bool servers_contain_faults(const image_t *image) {
    return atoi(image->driver_version) >= FIRST_CONTAINING_DRIVER;
}

bool servers_wedge(const image_t *image) {
    return image->cuda_version <= LAST_WEDGING_CUDA;
}
