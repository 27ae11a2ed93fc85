/* The driver's linker: takes code and gives an image. As what a module's image contains does not matter, neither does
 * what comes here. */
#include <stdlib.h>
#include <unistd.h>

#include "cuda_driver.h"

struct CUlinkState_st {
    char image[16];
    bool complete;
};

CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, CUlinkState *state) {
    CUcontext context;
    (void)count;
    (void)options; /* they are for the compiler */
    (void)values;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && state == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    *state = malloc(sizeof **state);
    if (*state == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    **state = (struct CUlinkState_st){.image = "simgpu"};
    return CUDA_SUCCESS;
}

CUresult cuLinkCreate(unsigned count, int *options, void **values, CUlinkState *state) {
    return cuLinkCreate_v2(count, options, values, state);
}

CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t bytes, const char *name, unsigned count,
                          int *options, void **values) {
    (void)type;
    (void)bytes;
    (void)name;
    (void)count;
    (void)options;
    (void)values;
    return state != NULL && !state->complete && data != NULL ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLinkAddData(CUlinkState state, int type, void *data, size_t bytes, const char *name, unsigned count,
                       int *options, void **values) {
    return cuLinkAddData_v2(state, type, data, bytes, name, count, options, values);
}

CUresult cuLinkAddFile_v2(CUlinkState state, int type, const char *path, unsigned count, int *options, void **values) {
    (void)type;
    (void)count;
    (void)options;
    (void)values;
    if (state == NULL || state->complete || path == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return access(path, R_OK) == 0 ? driver_ready() : CUDA_ERROR_FILE_NOT_FOUND;
}

CUresult cuLinkAddFile(CUlinkState state, int type, const char *path, unsigned count, int *options, void **values) {
    return cuLinkAddFile_v2(state, type, path, count, options, values);
}

/* The image is the state's, and goes with it. */
CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes) {
    if (state == NULL || image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    state->complete = true;
    *image = state->image;
    if (bytes != NULL)
        *bytes = sizeof state->image;
    return driver_ready();
}

CUresult cuLinkDestroy(CUlinkState state) {
    free(state);
    return state != NULL ? driver_ready() : CUDA_ERROR_INVALID_HANDLE;
}
