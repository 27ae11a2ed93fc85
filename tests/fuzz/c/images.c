/* The file of a simulated GPU with some bytes changed (each change is a section, an offset and eight bytes), opened
 * and read as `simgpu show` and the drivers do. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/stat.h>

#include "command/create.h"
#include "command/description.h"
#include "fuzz.h"
#include "image/clock.h"
#include "image/gpus.h"
#include "image/mig_layout.h"
#include "state/limits.h"
#include "state/slots.h"
#include "time/usage.h"

static const char text[] = "[gpu 0]\nmodel = NVIDIA A100-SXM4-80GB\nmemory = 80GiB\ncompute-capability = 8.0\n";
static char directory[128];
static char file[256];
static image_t sound;

static void begin(void) {
    static description_t description;
    char error[1024], path[192];
    gpu_t gpus[IMAGE_MAX_GPUS];
    unsigned count;
    fuzz_make_directory(directory, sizeof directory);
    (void)snprintf(path, sizeof path, "%s/node.ini", directory);
    FILE *described = fopen(path, "we");
    LAW(described != NULL && fputs(text, described) >= 0 && fclose(described) == 0);
    LAW(description_read(path, &description, error, sizeof error));
    LAW(create_gpus(&description, directory, true, error, sizeof error));
    LAW(gpus_open(directory, GPUS_READ, gpus, &count) == GPUS_OK && count == 1);
    sound = *gpus[0].image;
    (void)snprintf(file, sizeof file, "%s/gpu0-%s", directory, sound.uuid);
}

static void change(image_t *image, input_t *input) {
    static const struct {
        size_t offset, size;
    } parts[] = {{0, offsetof(image_t, lost)},
                 {offsetof(image_t, lost), offsetof(image_t, events) - offsetof(image_t, lost)},
                 {offsetof(image_t, mig_mode), offsetof(image_t, limits) - offsetof(image_t, mig_mode)},
                 {offsetof(image_t, limits), 256},
                 {offsetof(image_t, schedule), 256},
                 {offsetof(image_t, slots_high), 512},
                 {offsetof(image_t, orphans_high), 256}};
    size_t part = input_number(input, 1) % (sizeof parts / sizeof *parts);
    size_t at = input_number(input, 2) % parts[part].size;
    uint8_t bytes[8];
    (void)input_copy(input, bytes, sizeof bytes);
    size_t left = sizeof *image - parts[part].offset - at;
    memcpy((char *)image + parts[part].offset + at, bytes, left < sizeof bytes ? left : sizeof bytes);
}

static void look_at(gpu_t *gpu) {
    static slot_holder_t holders[IMAGE_SLOTS];
    const image_t *image = gpu->image;
    uint64_t soft, hard, total, used;
    LAW(slots_holders(gpu, holders, IMAGE_SLOTS) <= IMAGE_SLOTS);
    (void)slots_used_bytes(gpu);
    (void)usage_percent(image, clock_now_ns());
    (void)limits_get(gpu, 1, &soft, &hard);
    slots_memory_info(gpu, &total, &used);
    (void)mig_mode_text(image);
    for (unsigned i = 0; i < IMAGE_INSTANCES; i++) {
        const image_instance_t *instance = &image->instances[i];
        const mig_profile_t *profile = mig_profile(image, instance->profile);
        char name[64];
        for (unsigned part = 0; profile != NULL && instance->present && part < IMAGE_INSTANCES; part++)
            mig_name(image, profile, instance->compute_instances[part].slices, name, sizeof name);
    }
    LAW(strlen(image->driver_version) < 32 && strlen(image->model) < 96);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input_t input = {data, size};
    gpu_t gpus[IMAGE_MAX_GPUS];
    unsigned count;
    if (file[0] == '\0')
        begin();
    static image_t image;
    image = sound;
    while (input.left > 0)
        change(&image, &input);
    int descriptor = open(file, O_WRONLY | O_CLOEXEC);
    LAW(descriptor >= 0 && pwrite(descriptor, &image, sizeof image, 0) == (ssize_t)sizeof image);
    close(descriptor);
    memset(gpus, 0, sizeof gpus);
    if (gpus_open(directory, GPUS_READ, gpus, &count) == GPUS_OK)
        look_at(&gpus[0]);
    /* Drivers keep both open until they exit. */
    if (gpus[0].image != NULL)
        munmap(gpus[0].image, sizeof(image_file_t));
    if (gpus[0].descriptor > 0)
        close(gpus[0].descriptor);
    return 0;
}
