/* A library with arbitrary content that a program is about to load: whether it may be CUDA, or depend on it. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "driver/needed.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    int free_before = fuzz_free_descriptor();
    int descriptor = memfd_create("library", MFD_CLOEXEC);
    LAW(descriptor >= 0 && write(descriptor, data, size) == (ssize_t)size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    bool may_be = needed_may_use_cuda(path);
    LAW(may_be || size > 0);
    close(descriptor);
    LAW(fuzz_free_descriptor() == free_before);
    return 0;
}
