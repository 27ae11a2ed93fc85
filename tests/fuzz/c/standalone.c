/* The inputs that are named, one after the other: for a compiler that has no libFuzzer. */
#define _GNU_SOURCE
#include "fuzz.h"

int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(names[i], "rb");
        LAW(file != NULL && fseek(file, 0, SEEK_END) == 0);
        size_t size = (size_t)ftell(file);
        rewind(file);
        uint8_t *data = malloc(size > 0 ? size : 1); /* exactly so much, so that a look behind its end is seen */
        LAW(data != NULL && fread(data, 1, size, file) == size);
        fclose(file);
        (void)LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    return 0;
}
