/* What is known of a GPU by the name of its model: the numbers that a description leaves out. */
#ifndef SIMGPU_MODELS_H
#define SIMGPU_MODELS_H

#include "image/image.h"

typedef struct {
    const char *name; /* as NVML gives it */
    uint16_t pci_device, pci_subsystem;
    unsigned watts;
    unsigned graphics_mhz, memory_mhz; /* the highest */
    unsigned fans;                     /* those of data centres have none of their own */
} model_t;

#define MODELS_PCI_VENDOR 0x10DEu
#define MODELS_PCI_CLASS 0x030200u /* a 3D controller: no display is attached */

/* Never NULL: a model that is unknown is like a desktop card. */
const model_t *models_of(const image_t *image);

#endif
