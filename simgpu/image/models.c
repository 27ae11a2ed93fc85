#include "image/models.h"

#include <string.h>

static const model_t models[] = {
    {"NVIDIA A100-SXM4-40GB", 0x20B0, 0x134F, 400, 1410, 1215, 0},
    {"NVIDIA A100-SXM4-80GB", 0x20B2, 0x1463, 400, 1410, 1593, 0},
    {"NVIDIA A100-PCIE-40GB", 0x20F1, 0x145F, 250, 1410, 1215, 0},
    {"NVIDIA A100 80GB PCIe", 0x20B5, 0x1533, 300, 1410, 1512, 0},
    {"NVIDIA A30", 0x20B7, 0x1532, 165, 1440, 1215, 0},
    {"NVIDIA H100 80GB HBM3", 0x2330, 0x16C1, 700, 1980, 2619, 0},
    {"NVIDIA H100 PCIe", 0x2331, 0x1626, 350, 1755, 1593, 0},
    {"NVIDIA L4", 0x27B8, 0x16CA, 72, 2040, 6251, 0},
    {"NVIDIA L40S", 0x26B9, 0x1851, 350, 2520, 9001, 0},
    {"Tesla T4", 0x1EB8, 0x12A2, 70, 1590, 5001, 0},
};

const model_t *model_for(const image_t *image) {
    static const model_t other = {"", 0x2684, 0x0000, 450, 2520, 10501, 1};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(models[i].name, image->model) == 0)
            return &models[i];
    }
    return &other;
}
