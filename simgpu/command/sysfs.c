#define _GNU_SOURCE
#include "command/sysfs.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/models.h"

#define DEVICES "sys/bus/pci/devices"
#define DRIVER "sys/bus/pci/drivers/nvidia"
#define MINORS "proc/driver/nvidia-caps/mig-minors"
#define RESOURCES 13u
#define REGISTERS_BYTES (16ull << 20)
#define FIRST_ADDRESS (1ull << 40)
/* Minor numbers of capabilities: 1 and 2 belong to the node, the others to GPU instances and their compute
 * instances. */
#define FIRST_MINOR 3u
#define GPU_INSTANCES 15u
#define COMPUTE_INSTANCES 8u

static bool make_parents(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool fine = mkdir(path, 0755) == 0 || errno == EEXIST;
        *slash = '/';
        if (!fine)
            return false;
    }
    return true;
}

/* Create a file and the missing directories above it. */
static FILE *create_file(const char *root, const char *directory, const char *name) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s%s%s", root, directory, *name != '\0' ? "/" : "", name) >= PATH_MAX ||
        !make_parents(path))
        return NULL;
    return fopen(path, "we");
}

static bool __attribute__((format(printf, 4, 5))) write_text(const char *root, const char *directory, const char *name,
                                                             const char *format, ...) {
    FILE *file = create_file(root, directory, name);
    if (file == NULL)
        return false;
    va_list arguments;
    va_start(arguments, format);
    (void)vfprintf(file, format, arguments);
    va_end(arguments);
    return fclose(file) == 0;
}

/* The first 64 bytes of a device's configuration space identify it. */
static bool write_config(const char *root, const char *directory, const model_t *model) {
    uint8_t config[256] = {0};
    const struct {
        unsigned at, value, bytes;
    } fields[] = {{0x00, MODELS_PCI_VENDOR, 2},
                  {0x02, model->pci_device, 2},
                  {0x09, MODELS_PCI_CLASS, 3},
                  {0x2C, MODELS_PCI_VENDOR, 2},
                  {0x2E, model->pci_subsystem, 2}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (unsigned byte = 0; byte < fields[i].bytes; byte++)
            config[fields[i].at + byte] = (uint8_t)(fields[i].value >> (8 * byte));
    FILE *file = create_file(root, directory, "config");
    bool written = file != NULL && fwrite(config, sizeof config, 1, file) == 1;
    return file != NULL && fclose(file) == 0 && written;
}

/* Write the address ranges of registers and memory. The second range covers all of the GPU's memory. */
static bool write_resources(const char *root, const char *directory, const gpu_t *gpu) {
    FILE *file = create_file(root, directory, "resource");
    if (file == NULL)
        return false;
    unsigned long long memory_bytes = 1ull << 28;
    while (memory_bytes < gpu->image->memory_bytes)
        memory_bytes <<= 1;
    unsigned long long registers = FIRST_ADDRESS * (2 * gpu->image->node_index + 1), memory = registers + FIRST_ADDRESS;
    for (unsigned i = 0; i < RESOURCES; i++) {
        unsigned long long start = i == 0 ? registers : i == 1 ? memory : 0;
        unsigned long long bytes = i == 0 ? REGISTERS_BYTES : i == 1 ? memory_bytes : 0;
        fprintf(file, "0x%016llx 0x%016llx 0x%016x\n", start, bytes == 0 ? 0 : start + bytes - 1,
                bytes == 0 ? 0 : 0x40200u);
    }
    return fclose(file) == 0;
}

static bool link_driver(const char *root, const char *directory) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s/driver", root, directory) >= PATH_MAX)
        return false;
    return symlink("../../drivers/nvidia", path) == 0 || errno == EEXIST;
}

static bool write_device(const char *root, const gpu_t *gpu) {
    const model_t *model = model_for(gpu->image);
    char directory[sizeof DEVICES + sizeof gpu->image->pci_bus_id];
    /* The kernel writes the domain with four digits, and everything in lower case. */
    (void)snprintf(directory, sizeof directory, DEVICES "/%s", gpu->image->pci_bus_id + 4);
    for (char *at = directory; *at != '\0'; at++)
        *at = (char)tolower((unsigned char)*at);
    return write_text(root, directory, "vendor", "0x%04x\n", MODELS_PCI_VENDOR) &&
           write_text(root, directory, "device", "0x%04x\n", model->pci_device) &&
           write_text(root, directory, "subsystem_vendor", "0x%04x\n", MODELS_PCI_VENDOR) &&
           write_text(root, directory, "subsystem_device", "0x%04x\n", model->pci_subsystem) &&
           write_text(root, directory, "class", "0x%06x\n", MODELS_PCI_CLASS) &&
           write_text(root, directory, "numa_node", "%d\n", gpu->image->numa_node) &&
           write_config(root, directory, model) && write_resources(root, directory, gpu) &&
           link_driver(root, directory);
}

static bool write_minors(const char *root, const gpu_t *gpus, unsigned count) {
    FILE *file = create_file(root, MINORS, "");
    if (file == NULL)
        return false;
    fputs("config 1\nmonitor 2\n", file);
    for (unsigned i = 0; i < count; i++) {
        unsigned gpu = gpus[i].image->node_index, minor = FIRST_MINOR + gpu * GPU_INSTANCES * (COMPUTE_INSTANCES + 1);
        for (unsigned instance = 0; instance < GPU_INSTANCES; instance++) {
            fprintf(file, "gpu%u/gi%u/access %u\n", gpu, instance, minor++);
            for (unsigned compute = 0; compute < COMPUTE_INSTANCES; compute++)
                fprintf(file, "gpu%u/gi%u/ci%u/access %u\n", gpu, instance, compute, minor++);
        }
    }
    return fclose(file) == 0;
}

bool sysfs_write(const gpu_t *gpus, unsigned count, const char *root, char *error, unsigned error_size) {
    bool fine = write_text(root, "proc/modules", "", "nvidia 56692736 2 - Live 0x0000000000000000 (POE)\n") &&
                write_text(root, DRIVER, "new_id", "%s", "") && write_minors(root, gpus, count);
    for (unsigned i = 0; fine && i < count; i++)
        fine = write_device(root, &gpus[i]);
    if (!fine)
        (void)snprintf(error, error_size, "cannot write to %s: %s: choose a writable directory", root, strerror(errno));
    return fine;
}
