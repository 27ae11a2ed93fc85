/* What the targets in C have in common. */
#ifndef GPUSHARE_FUZZ_H
#define GPUSHARE_FUZZ_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What libFuzzer calls, or `standalone.c`. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A law of the target: what breaks it ends the run, and is kept. */
#define LAW(holds)                                                                                                     \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            fprintf(stderr, "%s:%d: this does not hold: %s\n", __FILE__, __LINE__, #holds);                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* An input is read from its front; what is not there any more is zeros. */
typedef struct {
    const uint8_t *at;
    size_t left;
} input_t;

static inline size_t input_copy(input_t *input, void *to, size_t size) {
    size_t there = size < input->left ? size : input->left;
    memset(to, 0, size);
    if (there > 0)
        memcpy(to, input->at, there);
    input->at += there;
    input->left -= there;
    return there;
}

static inline uint64_t input_number(input_t *input, size_t bytes) {
    uint64_t number = 0;
    (void)input_copy(input, &number, bytes);
    return number;
}

/* The lowest descriptor that is free: the same before and after, if none was left open. */
static inline int fuzz_free_descriptor(void) {
    int found = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    LAW(found >= 0);
    close(found);
    return found;
}

/* A directory for the files of a target, of which whoever has started it disposes. */
static inline void fuzz_make_directory(char *path, size_t size) {
    const char *above = getenv("TMPDIR");
    int length = snprintf(path, size, "%s/XXXXXX", above != NULL ? above : "/tmp");
    LAW(length > 0 && (size_t)length < size && mkdtemp(path) != NULL);
}

#endif
