/* Helpers of the C targets. */
#ifndef GPUSHARE_FUZZ_H
#define GPUSHARE_FUZZ_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Called by libFuzzer or `standalone.c`. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A law of the target: an input that breaks it ends the run and is kept. */
#define LAW(holds)                                                                                                     \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            fprintf(stderr, "%s:%d: this does not hold: %s\n", __FILE__, __LINE__, #holds);                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Inputs are read from the front; bytes beyond the end read as zeros. */
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

/* Return the lowest free descriptor, which is the same before and after if none leaked. */
static inline int fuzz_free_descriptor(void) {
    int found = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    LAW(found >= 0);
    close(found);
    return found;
}

/* Return a directory for the target's files, which the caller of the program removes. */
static inline void fuzz_make_directory(char *path, size_t size) {
    const char *above = getenv("TMPDIR");
    int length = snprintf(path, size, "%s/XXXXXX", above != NULL ? above : "/tmp");
    LAW(length > 0 && (size_t)length < size && mkdtemp(path) != NULL);
}

#endif
