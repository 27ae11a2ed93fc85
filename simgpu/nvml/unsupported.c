/* NVML functions that are not simulated. The real library exports all functions, and programs look up some that they
 * never call. Each returns NVML_ERROR_NOT_SUPPORTED. */
#include <string.h>

#include "nvml/session.h"

static nvmlReturn_t answer(void) {
    unsigned count;
    return session_gpus(&count) == NULL ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_NOT_SUPPORTED;
}

/* The arguments do not matter: the caller removes them from the stack. */
#define UNSUPPORTED(name)                                                                                              \
    NVML_API nvmlReturn_t name(void);                                                                                  \
    nvmlReturn_t name(void) {                                                                                          \
        return answer();                                                                                               \
    }
#include "nvml/unsupported.def"

/* The table of functions that the real nvidia-smi asks for in addition to NVML. The first word of the table is its
 * size. All entries return NVML_ERROR_NOT_SUPPORTED, and nvidia-smi then uses NVML's public functions. */

#define SLOTS 96u

typedef nvmlReturn_t (*slot_t)(void);

static nvmlReturn_t unsupported(void) {
    return NVML_ERROR_NOT_SUPPORTED;
}

static const uint8_t known_id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                     0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

NVML_API nvmlReturn_t nvmlInternalGetExportTable(const void **table, const uint8_t *id);

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const uint8_t *id) {
    static struct {
        uint64_t bytes;
        slot_t slots[SLOTS];
    } made;
    if (table == NULL || id == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memcmp(id, known_id, sizeof known_id) != 0)
        return NVML_ERROR_NOT_FOUND;
    for (unsigned i = 0; i < SLOTS; i++)
        made.slots[i] = unsupported;
    made.bytes = sizeof made;
    *table = &made;
    return NVML_SUCCESS;
}
