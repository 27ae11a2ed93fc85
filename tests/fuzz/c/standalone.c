/* Runs the named inputs, one after the other: for compilers without libFuzzer. */
#define _GNU_SOURCE
#include "fuzz.h"

int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(names[i], "rb");
        LAW(file != NULL && fseek(file, 0, SEEK_END) == 0);
        size_t size = (size_t)ftell(file);
        rewind(file);
        uint8_t *data = malloc(size > 0 ? size : 1); /* exactly that size, so that a read beyond its end is detected */
        LAW(data != NULL && fread(data, 1, size, file) == size);
        fclose(file);
        (void)LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    return 0;
}
