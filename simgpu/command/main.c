/* The `simgpu` command: creates a node's simulated GPUs, shows them, and makes them fail and recover. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command/create.h"
#include "command/sysfs.h"
#include "image/clock.h"
#include "state/mig.h"
#include "state/slots.h"
#include "time/usage.h"

#define EVENT_DOUBLE_BIT_ECC 0x2u
#define EVENT_XID 0x8u
#define XID_DOUBLE_BIT_ECC 48u
#define XID_OFF_THE_BUS 79u

static const char usage[] =
    "Simulated GPUs, for machines without one.\n"
    "\n"
    "  simgpu create [--node NAME] [--replace] NODE.ini DIRECTORY   create one file per GPU in NODE.ini\n"
    "  simgpu show DIRECTORY                                        list GPUs, their processes and failures\n"
    "  simgpu sysfs DIRECTORY ROOT                                  write the kernel's files about them: ROOT/sys, "
    "ROOT/proc\n"
    "  simgpu fail DIRECTORY GPU xid=N|ecc|lost|mute|silent|hung    inject a failure; GPU: index or UUID\n"
    "  simgpu heal DIRECTORY GPU                                    end all failures\n"
    "  simgpu reset DIRECTORY GPU                                   as nvidia-smi --gpu-reset: apply the "
    "pending MIG mode\n"
    "\n"
    "Programs find the GPUs in $SIMGPU_DIR (default /dev/simgpu) through build/simgpu/libcuda.so.1 and\n"
    "build/simgpu/libnvidia-ml.so.1.\n";

static int print_error(const char *sentence) {
    fprintf(stderr, "simgpu: %s\n", sentence);
    return EXIT_FAILURE;
}

static int create(int count, char **arguments) {
    const char *node = NULL;
    bool replace = false;
    while (count > 0 && arguments[0][0] == '-') {
        int used = 1;
        if (strcmp(arguments[0], "--replace") == 0) {
            replace = true;
        } else if (strcmp(arguments[0], "--node") == 0 && count > 1) {
            node = arguments[1];
            used = 2;
        } else {
            break;
        }
        count -= used;
        arguments += used;
    }
    if (count != 2)
        return print_error("create takes NODE.ini and DIRECTORY: see simgpu --help");

    static description_t description;
    char error[1024];
    if (!description_read(arguments[0], &description, error, sizeof error))
        return print_error(error);
    if (node != NULL && strlen(node) >= sizeof description.name)
        return print_error("--node is too long: use at most 63 characters");
    if (node != NULL)
        strcpy(description.name, node);
    if (!create_gpus(&description, arguments[1], replace, error, sizeof error))
        return print_error(error);
    return EXIT_SUCCESS;
}

static int open_directory(const char *directory, gpu_t *gpus, unsigned *count_p) {
    static const char *const sentences[] = {
        [GPUS_NONE] = "no GPUs in this directory: create some with simgpu create",
        [GPUS_MISMATCH] =
            "the GPUs in this directory were created by another version: create them again with --replace",
        [GPUS_DENIED] = "cannot open the GPUs in this directory for writing: run this as their owner",
    };
    gpus_result_t result = gpus_open(directory, GPUS_WRITE, gpus, count_p);
    return result == GPUS_OK ? EXIT_SUCCESS : print_error(sentences[result]);
}

static gpu_t *find_gpu(gpu_t *gpus, unsigned count, const char *name) {
    char *end;
    unsigned long index = strtoul(name, &end, 10);
    bool is_number = *name != '\0' && *end == '\0';
    for (unsigned i = 0; i < count; i++) {
        if (is_number ? gpus[i].image->node_index == index : strcmp(gpus[i].image->uuid, name) == 0)
            return &gpus[i];
    }
    return NULL;
}

static void show_instance(const image_t *image, const image_instance_t *instance) {
    for (size_t i = 0; instance->present && i < IMAGE_INSTANCES; i++) {
        const image_compute_instance_t *compute = &instance->compute_instances[i];
        char name[64];
        mig_name(image, mig_profile(image, instance->profile), compute->slices, name, sizeof name);
        if (compute->present)
            printf("  mig       %s at %u  GI %u CI %u  %s\n", name, instance->start, instance->id, compute->id,
                   compute->uuid);
    }
}

static void show_gpu(const gpu_t *gpu) {
    static slot_holder_t holders[IMAGE_SLOTS];
    const image_t *image = gpu->image;
    size_t count = slots_holders(gpu, holders, IMAGE_SLOTS);
    printf("GPU %u  %s\n", image->node_index, image->model);
    printf("  uuid      %s\n", image->uuid);
    printf("  pci       %s  numa %d\n", image->pci_bus_id, image->numa_node);
    printf("  compute   %u.%u  %u multiprocessors  mig %s\n", image->compute_capability_major,
           image->compute_capability_minor, image->multiprocessors, mig_mode_text(image));
    printf("  memory    %llu of %llu bytes used\n", (unsigned long long)slots_used_bytes(gpu),
           (unsigned long long)image->memory_bytes);
    printf("  busy      %u%%\n", usage_percent(image, clock_now_ns()));
    printf("  health    %s%s\n",
           image->lost         ? "lost"
           : image->ecc_failed ? "ecc error"
                               : "ok",
           image->event_count > 0 ? ", events:" : "");
    uint64_t first = image->event_count > IMAGE_EVENTS ? image->event_count - IMAGE_EVENTS : 0;
    for (uint64_t i = first; i < image->event_count; i++) {
        const image_event_t *event = &image->events[i % IMAGE_EVENTS];
        printf("    %llu: type 0x%llx, data %llu\n", (unsigned long long)i, (unsigned long long)event->type,
               (unsigned long long)event->data);
    }
    for (size_t i = 0; i < IMAGE_INSTANCES; i++)
        show_instance(image, &image->instances[i]);
    for (size_t i = 0; i < count; i++)
        printf("  process   %u  %llu bytes\n", holders[i].pid, (unsigned long long)holders[i].memory_bytes);
}

static int show(int count, char **arguments) {
    static gpu_t gpus[IMAGE_MAX_GPUS];
    unsigned gpu_count;
    if (count != 1)
        return print_error("show takes DIRECTORY: see simgpu --help");
    if (open_directory(arguments[0], gpus, &gpu_count) != EXIT_SUCCESS)
        return EXIT_FAILURE;
    printf("driver %s  CUDA %u.%u  %u GPUs\n", gpus[0].image->driver_version, gpus[0].image->cuda_version / 1000,
           gpus[0].image->cuda_version % 1000 / 10, gpu_count);
    for (unsigned i = 0; i < gpu_count; i++)
        show_gpu(&gpus[i]);
    return EXIT_SUCCESS;
}

static int sysfs(int count, char **arguments) {
    static gpu_t gpus[IMAGE_MAX_GPUS];
    unsigned gpu_count;
    char error[1024];
    if (count != 2)
        return print_error("sysfs takes DIRECTORY, to read GPUs from, and ROOT, to write to: see simgpu --help");
    if (open_directory(arguments[0], gpus, &gpu_count) != EXIT_SUCCESS)
        return EXIT_FAILURE;
    return sysfs_write(gpus, gpu_count, arguments[1], error, sizeof error) ? EXIT_SUCCESS : print_error(error);
}

static const char *const verbs[] = {"fail", "heal", "reset"};
typedef enum { FAIL, HEAL, RESET } verb_t;

/* Write the entry first, the count second: a reader that sees the count also sees the entry. */
static void append_event(image_t *image, uint64_t type, uint64_t data) {
    uint64_t number = image->event_count;
    image->events[number % IMAGE_EVENTS] = (image_event_t){.type = type, .data = data};
    image->event_count = number + 1;
}

static void mark_lost(image_t *image) {
    image->lost = 1;
    append_event(image, EVENT_XID, XID_OFF_THE_BUS);
}

static bool failure_inject(gpu_t *gpu, const char *what) {
    image_t *image = gpu->image;
    if (strcmp(what, "lost") == 0) {
        mark_lost(image);
        return true;
    }
    if (strcmp(what, "mute") == 0) {
        image->mute = 1;
        return true;
    }
    if (strcmp(what, "silent") == 0) {
        image->silent = 1;
        return true;
    }
    if (strcmp(what, "hung") == 0) {
        image->hung = 1;
        return true;
    }
    if (strcmp(what, "ecc") == 0) {
        image->ecc_uncorrected++;
        image->ecc_failed = 1;
        append_event(image, EVENT_DOUBLE_BIT_ECC, 0);
        append_event(image, EVENT_XID, XID_DOUBLE_BIT_ECC);
        return true;
    }
    if (strncmp(what, "xid=", 4) == 0 && isdigit((unsigned char)what[4])) {
        char *end;
        unsigned long xid = strtoul(what + 4, &end, 10);
        if (*end != '\0' || xid == 0 || xid > 1000)
            return false;
        if (xid == XID_OFF_THE_BUS)
            mark_lost(image);
        else
            append_event(image, EVENT_XID, xid);
        return true;
    }
    return false;
}

static void failure_heal(gpu_t *gpu) {
    gpu->image->lost = 0;
    gpu->image->mute = 0;
    gpu->image->silent = 0;
    gpu->image->hung = 0;
    gpu->image->ecc_failed = 0;
}

static int change(int count, char **arguments, verb_t verb) {
    static gpu_t gpus[IMAGE_MAX_GPUS];
    unsigned gpu_count;
    if (count != (verb == FAIL ? 3 : 2))
        return print_error(
            verb == FAIL ? "fail takes DIRECTORY, GPU and xid=N, ecc, lost, mute, silent or hung: see simgpu --help"
                         : "heal and reset take DIRECTORY and GPU: see simgpu --help");
    if (open_directory(arguments[0], gpus, &gpu_count) != EXIT_SUCCESS)
        return EXIT_FAILURE;
    gpu_t *gpu = find_gpu(gpus, gpu_count, arguments[1]);
    if (gpu == NULL)
        return print_error("no such GPU: give an index or UUID that simgpu show lists");
    if (verb == HEAL)
        failure_heal(gpu);
    else if (verb == RESET && mig_reset(gpu) != MIG_OK)
        return print_error("processes use this GPU: end them before the reset");
    else if (verb == FAIL && !failure_inject(gpu, arguments[2]))
        return print_error("unknown failure: write xid=N (1 to 1000), ecc, lost, mute, silent or hung");
    return EXIT_SUCCESS;
}

int main(int count, char **arguments) {
    const char *verb = count > 1 ? arguments[1] : "";
    if (strcmp(verb, "create") == 0)
        return create(count - 2, arguments + 2);
    if (strcmp(verb, "show") == 0)
        return show(count - 2, arguments + 2);
    if (strcmp(verb, "sysfs") == 0)
        return sysfs(count - 2, arguments + 2);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (strcmp(verb, verbs[i]) == 0)
            return change(count - 2, arguments + 2, (verb_t)i);
    }
    bool help = strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0;
    fputs(usage, help ? stdout : stderr);
    return help ? EXIT_SUCCESS : EXIT_FAILURE;
}
