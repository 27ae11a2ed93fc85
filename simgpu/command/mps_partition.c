#define _GNU_SOURCE
#include "command/mps_partition.h"

#include <string.h>
#include <unistd.h>

#include "command/mps_server.h"

#define FIRST_CUDA 13010u
#define PARTITIONS 128u
#define ID_LENGTH 36u
#define SHORT_UUID 12

typedef struct {
    int device;
    unsigned chunks;
    char id[ID_LENGTH + 1];
} partition_t;

static partition_t partitions[PARTITIONS]; /* without chunks: free */
static unsigned made;

/* https://docs.nvidia.com/deploy/mps/: 8 multiprocessors from Hopper on, 4 before. */
static unsigned chunk_multiprocessors(const gpu_t *gpu) {
    return gpu->image->compute_capability_major >= 9 ? 8 : 4;
}

static unsigned used_chunks(int device) {
    unsigned used = 0;
    for (unsigned i = 0; i < PARTITIONS; i++)
        used += partitions[i].device == device ? partitions[i].chunks : 0;
    return used;
}

/* Whether clients use the partition; 0: any part of the GPU. */
static bool is_used(int device, unsigned number) {
    static slot_holder_t holders[IMAGE_SLOTS];
    size_t count = mps_server_clients((unsigned)device, holders);
    for (size_t i = 0; i < count; i++) {
        if (number == 0 || holders[i].partition == number)
            return true;
    }
    return false;
}

bool mps_partitions_are_known(void) {
    for (unsigned i = 0; i < mps_gpu_count(); i++) {
        if (mps_gpu(i)->image->cuda_version < FIRST_CUDA)
            return false;
    }
    return true;
}

static const char *why_not(int device, unsigned chunks) {
    if (device < 0)
        return "CUDA_ERROR_INVALID_DEVICE";
    const gpu_t *gpu = mps_gpu((unsigned)device);
    if (gpu->image->compute_capability_major < 8 || gpu->image->cuda_version < FIRST_CUDA)
        return "CUDA_ERROR_NOT_SUPPORTED";
    if (is_used(device, 0))
        return "CUDA_ERROR_NOT_PERMITTED";
    unsigned all = gpu->image->multiprocessors / chunk_multiprocessors(gpu);
    return chunks == 0 || chunks > all - used_chunks(device) ? "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" : NULL;
}

void mps_partition_add(const char *uuid, unsigned chunks, FILE *answer) {
    int device = mps_device(uuid);
    const char *why = why_not(device, chunks);
    partition_t *free_entry = NULL;
    for (unsigned i = 0; i < PARTITIONS && free_entry == NULL; i++)
        free_entry = partitions[i].chunks == 0 ? &partitions[i] : NULL;
    if (why != NULL || free_entry == NULL) {
        fprintf(answer, "Failed to fulfill the requested SM partition of %u chunks, error %s\n", chunks,
                why != NULL ? why : "CUDA_ERROR_OUT_OF_MEMORY");
        return;
    }
    *free_entry = (partition_t){.device = device, .chunks = chunks};
    memset(free_entry->id, 'A', ID_LENGTH);
    made++;
    free_entry->id[0] = (char)('A' + made % 26);
    free_entry->id[1] = (char)('a' + made / 26 % 26);
    unsigned daemon = (unsigned)getpid(); /* no two daemons give the same names */
    for (unsigned i = 2; daemon != 0; i++, daemon /= 26)
        free_entry->id[i] = (char)('a' + daemon % 26);
    fprintf(answer, "Partition %s/%s created\n", mps_gpu((unsigned)device)->image->uuid, free_entry->id);
}

static int find(int device, const char *id) {
    for (unsigned i = 0; i < PARTITIONS; i++) {
        if (partitions[i].chunks != 0 && partitions[i].device == device && strcmp(partitions[i].id, id) == 0)
            return (int)i;
    }
    return -1;
}

void mps_partition_remove(const char *uuid, const char *id, FILE *answer) {
    int device = mps_device(uuid), at = device >= 0 ? find(device, id) : -1;
    if (at < 0)
        fprintf(answer, "Failed to remove partition %s/%s, error CUDA_ERROR_INVALID_VALUE\n", uuid, id);
    else if (is_used(device, (unsigned)at + 1))
        fprintf(answer, "Failed to remove partition %s/%s, error CUDA_ERROR_NOT_PERMITTED\n", uuid, id);
    else
        partitions[at].chunks = 0;
}

unsigned mps_partition_find(const char *name, unsigned *multiprocessors_p) {
    char uuid[64] = "";
    const char *id = strchr(name, '/');
    if (id == NULL || id - name >= (ptrdiff_t)sizeof uuid)
        return 0;
    memcpy(uuid, name, (size_t)(id - name));
    int device = mps_device(uuid), at = device >= 0 ? find(device, id + 1) : -1;
    if (at < 0)
        return 0;
    *multiprocessors_p = partitions[at].chunks * chunk_multiprocessors(mps_gpu((unsigned)device));
    return (unsigned)at + 1;
}

void mps_partition_list(FILE *answer) {
    fprintf(answer, "%-14s %-37s %-6s %-6s %-5s %-5s %s\n", "GPU", "Partition", "free", "used", "free", "used",
            "clients");
    fprintf(answer, "%-52s %-6s %-6s %-5s %-5s\n", "", "chunks", "chunks", "SM", "SM");
    for (unsigned device = 0; device < mps_gpu_count(); device++) {
        const gpu_t *gpu = mps_gpu(device);
        unsigned size = chunk_multiprocessors(gpu), used = used_chunks((int)device), all = gpu->image->multiprocessors;
        fprintf(answer, "%-14.*s %-37s %-6u %-6u %-5u %-5u -\n", SHORT_UUID, gpu->image->uuid, "-", all / size - used,
                used, all - used * size, used * size);
        for (unsigned i = 0; i < PARTITIONS; i++) {
            const partition_t *one = &partitions[i];
            if (one->chunks != 0 && one->device == (int)device)
                fprintf(answer, "%-14.*s %-37s %-6s %-6u %-5s %-5u %s\n", SHORT_UUID, gpu->image->uuid, one->id, "-",
                        one->chunks, "-", one->chunks * size, is_used((int)device, i + 1) ? "Yes" : "No");
        }
    }
}
