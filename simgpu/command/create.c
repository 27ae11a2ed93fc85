#define _GNU_SOURCE
#include "command/create.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "time/rendezvous.h"

#define PREFIX "gpu"
#define UNFINISHED ".new-" /* a file with this prefix is not a GPU yet */

/* FNV-1a, twice with different starts: 128 bits that are the same on every run. */
static void derive_uuid(const char *node, unsigned index, uint8_t *bytes) {
    char text[96];
    (void)snprintf(text, sizeof text, "%s/%u", node, index);
    for (unsigned half = 0; half < 2; half++) {
        uint64_t hash = 0xcbf29ce484222325ull ^ half;
        for (const char *at = text; *at != '\0'; at++)
            hash = (hash ^ (uint8_t)*at) * 0x100000001b3ull;
        hash ^= hash >> 32;
        hash *= 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
        for (unsigned i = 0; i < 8; i++)
            bytes[half * 8 + i] = (uint8_t)(hash >> (8 * i));
    }
    bytes[6] = (bytes[6] & 0x0f) | 0x40; /* RFC 4122: random, variant 1 */
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
}

static void write_uuid(const uint8_t *b, char *text, size_t size) {
    (void)snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
                   b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static void read_uuid(const char *text, uint8_t *bytes) {
    unsigned digits = 0;
    for (const char *at = text + strlen("GPU-"); *at != '\0' && digits < 32; at++) {
        if (*at == '-')
            continue;
        uint8_t digit = (uint8_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
        bytes[digits / 2] = (uint8_t)(bytes[digits / 2] << 4 | digit);
        digits++;
    }
}

static void fill(image_t *image, const description_t *node, const description_gpu_t *gpu, unsigned nth) {
    memset(image, 0, sizeof *image);
    memcpy(image->magic, IMAGE_MAGIC, sizeof IMAGE_MAGIC);
    image->version = IMAGE_VERSION;
    image->size_bytes = sizeof(image_file_t);
    image->node_index = gpu->index + nth;
    image->cuda_version = node->cuda_version;
    memcpy(image->driver_version, node->driver_version, sizeof image->driver_version);
    memcpy(image->model, gpu->model, sizeof image->model);
    if (gpu->uuid[0] != '\0')
        read_uuid(gpu->uuid, image->uuid_bytes);
    else
        derive_uuid(node->name, image->node_index, image->uuid_bytes);
    write_uuid(image->uuid_bytes, image->uuid, sizeof image->uuid);
    (void)snprintf(image->pci_bus_id, sizeof image->pci_bus_id, "%08X:%02X:00.0", gpu->pci_domain, gpu->pci_bus + nth);
    image->memory_bytes = gpu->memory_bytes;
    image->context_bytes = gpu->context_bytes;
    image->compute_capability_major = gpu->compute_capability_major;
    image->compute_capability_minor = gpu->compute_capability_minor;
    image->numa_node = gpu->numa_node;
    image->pci_switch = gpu->pci_switch;
    image->nvlink_peers = gpu->nvlink_peers & ~(1ull << image->node_index);
    image->mig_slices = !gpu->mig_capable ? 0 : strstr(gpu->model, "A30") != NULL ? 4 : 8;
    image->multiprocessors = gpu->multiprocessors;
    image->context_switch_ns = gpu->context_switch_ns;
    if (gpu->fabric_uuid[0] != '\0')
        read_uuid(gpu->fabric_uuid, image->fabric_uuid_bytes);
    image->fabric_clique = gpu->fabric_clique;
    image->block_bytes = gpu->block_bytes;
    image->kernel_ns = gpu->kernel_ns;
}

static void image_name(const image_t *image, const char *prefix, char *name, size_t size) {
    (void)snprintf(name, size, "%s" PREFIX "%u-%s", prefix, image->node_index, image->uuid);
}

/* Make the file accessible to all, despite the umask: any container of the node may use the GPU, as with
 * /dev/nvidia0. */
static bool write_image(int directory, const image_t *image) {
    char name[128];
    image_name(image, UNFINISHED, name, sizeof name);
    int descriptor = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return false;
    bool written = write(descriptor, image, sizeof *image) == (ssize_t)sizeof *image && fchmod(descriptor, 0666) == 0;
    return close(descriptor) == 0 && written;
}

/* Create the empty file through which kernels of different GPUs wait for each other. */
static bool write_rendezvous(int directory) {
    int descriptor = openat(directory, UNFINISHED RENDEZVOUS_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return false;
    bool written = write(descriptor, RENDEZVOUS_MAGIC, sizeof RENDEZVOUS_MAGIC) == (ssize_t)sizeof RENDEZVOUS_MAGIC &&
                   ftruncate(descriptor, sizeof(rendezvous_t)) == 0 && fchmod(descriptor, 0666) == 0;
    return close(descriptor) == 0 && written;
}

static bool is_gpu(const char *name) {
    unsigned index;
    return sscanf(name, PREFIX "%u-GPU-", &index) == 1;
}

/* Remove the files whose names begin with `prefix`, or only count them. */
static unsigned visit(const char *path, int directory, bool (*wanted)(const char *), bool delete) {
    DIR *entries = opendir(path);
    unsigned count = 0;
    struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        if (!wanted(entry->d_name))
            continue;
        count++;
        if (delete)
            (void)unlinkat(directory, entry->d_name, 0);
    }
    if (entries != NULL)
        closedir(entries);
    return count;
}

static bool is_unfinished(const char *name) {
    return strncmp(name, UNFINISHED, strlen(UNFINISHED)) == 0;
}

static bool publish(const image_t *images, unsigned count, int directory) {
    for (unsigned i = 0; i < count; i++) {
        char from[128], to[128];
        image_name(&images[i], UNFINISHED, from, sizeof from);
        image_name(&images[i], "", to, sizeof to);
        if (renameat(directory, from, directory, to) != 0)
            return false;
    }
    return renameat(directory, UNFINISHED RENDEZVOUS_NAME, directory, RENDEZVOUS_NAME) == 0;
}

bool create_gpus(const description_t *description, const char *directory, bool replace, char *error,
                 unsigned error_size) {
    unsigned count = 0;
    image_t *images = calloc(IMAGE_MAX_GPUS, sizeof *images);
    if (images == NULL) {
        (void)snprintf(error, error_size, "out of memory: free some and run this again");
        return false;
    }
    for (unsigned section = 0; section < description->gpu_count; section++)
        for (unsigned nth = 0; nth < description->gpus[section].count; nth++)
            fill(&images[count++], description, &description->gpus[section], nth);

    (void)mkdir(directory, 0755); /* a failure shows in the next call, with its reason */
    int descriptor = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool fine = false;
    if (descriptor < 0) {
        (void)snprintf(error, error_size, "cannot use %s: %s: choose a writable directory", directory, strerror(errno));
    } else if (!replace && visit(directory, descriptor, is_gpu, false) > 0) {
        (void)snprintf(error, error_size, "%s already contains GPUs: remove them, or use --replace", directory);
    } else {
        fine = write_rendezvous(descriptor);
        for (unsigned i = 0; fine && i < count; i++)
            fine = write_image(descriptor, &images[i]);
        if (fine && replace)
            (void)visit(directory, descriptor, is_gpu, true);
        fine = fine && publish(images, count, descriptor);
        if (!fine) {
            (void)snprintf(error, error_size,
                           "cannot write the GPUs to %s: %s: free some space or choose another directory", directory,
                           strerror(errno));
            (void)visit(directory, descriptor, is_unfinished, true);
        }
    }
    if (descriptor >= 0)
        close(descriptor);
    free(images);
    return fine;
}
