/* Figures for known GPU models that a description does not contain, by the model's name. */
#ifndef SIMGPU_MODELS_H
#define SIMGPU_MODELS_H

#include "image/image.h"

typedef struct {
    const char *name; /* as NVML returns it */
    uint16_t pci_device, pci_subsystem;
    unsigned watts;
    unsigned graphics_mhz, memory_mhz; /* maximum clocks */
    unsigned fans;                     /* data-center models have none */
} model_t;

#define MODELS_PCI_VENDOR 0x10DEu
#define MODELS_PCI_CLASS 0x030200u /* a 3D controller: no display is attached */

/* Never NULL: an unknown model gets the figures of a desktop GPU. */
const model_t *model_for(const image_t *image);

#endif
