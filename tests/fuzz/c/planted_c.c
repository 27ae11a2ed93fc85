/* A planted fault, two steps deep, that the fuzzer must find. */
#define _GNU_SOURCE
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char bytes[4] = "abc";
    volatile size_t at = 0;
    if (size > 1 && data[0] == '!') {
        at = 1;
        if (data[1] == '!')
            at = sizeof bytes;
    }
    return bytes[at] == 'x';
}
