/* A description of simulated GPUs, and the files made from it. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "command/create.h"
#include "command/description.h"
#include "fuzz.h"
#include "image/gpus.h"

#define MOST_GPUS 3u /* GPUs to create: their files are large */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static description_t description;
    static char directory[128];
    char path[64], error[1024] = "";
    unsigned count = 0;
    if (directory[0] == '\0')
        fuzz_make_directory(directory, sizeof directory);
    int free_before = fuzz_free_descriptor();
    int descriptor = memfd_create("description", MFD_CLOEXEC);
    LAW(descriptor >= 0 && write(descriptor, data, size) == (ssize_t)size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    bool fine = description_read(path, &description, error, sizeof error);
    LAW(memchr(error, '\0', sizeof error) != NULL && fine == (error[0] == '\0'));
    close(descriptor);
    for (unsigned i = 0; fine && i < description.gpu_count; i++)
        count += description.gpus[i].count;
    LAW(count <= IMAGE_MAX_GPUS);
    if (fine && count <= MOST_GPUS)
        LAW(create_gpus(&description, directory, true, error, sizeof error));
    LAW(fuzz_free_descriptor() == free_before);
    return 0;
}
