#include "cuda/device/handle.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ALIVE 0x73696d6770750000ull
#define ENDED 0x656e646564000000ull
#define MAX_ENDED 65536u /* ended objects whose memory is kept */

static const struct {
    const char *what, *ended_by;
} kinds[HANDLE_KINDS] = {
    [HANDLE_STREAM] = {"a stream", "cuStreamDestroy"},
    [HANDLE_EVENT] = {"an event", "cuEventDestroy"},
    [HANDLE_MODULE] = {"a module", "cuModuleUnload"},
    [HANDLE_FUNCTION] = {"a function", "cuModuleUnload"},
    [HANDLE_GRAPH] = {"a graph", "cuGraphDestroy"},
    [HANDLE_GRAPH_NODE] = {"a node", "cuGraphDestroy"},
    [HANDLE_GRAPH_EXEC] = {"an executable graph", "cuGraphExecDestroy"},
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *ended[MAX_ENDED];
static unsigned next_ended;

void *handle_make(handle_kind_t kind, size_t bytes) {
    handle_head_t *head = calloc(1, bytes);
    if (head != NULL)
        head->word = ALIVE + kind;
    return head;
}

void handle_end(void *object, handle_kind_t kind) {
    handle_check(object, kind);
    handle_head_t *head = object;
    head->word = ENDED + kind;
    pthread_mutex_lock(&mutex);
    void *oldest = ended[next_ended];
    ended[next_ended] = object;
    next_ended = (next_ended + 1) % MAX_ENDED;
    pthread_mutex_unlock(&mutex);
    free(oldest);
}

static _Noreturn void end_program(const void *object, handle_kind_t kind, uint64_t word) {
    char text[256];
    int length;
    if (word == ENDED + kind)
        length = snprintf(text, sizeof text,
                          "simgpu: this program used %s (%p) after %s: on a real GPU it may crash, now or later\n",
                          kinds[kind].what, object, kinds[kind].ended_by);
    else
        length = snprintf(text, sizeof text,
                          "simgpu: this program passed %p as %s, which it is not: on a real GPU it may crash\n", object,
                          kinds[kind].what);
    (void)!write(STDERR_FILENO, text, (size_t)length);
    abort();
}

void handle_check(const void *object, handle_kind_t kind) {
    const handle_head_t *head = object;
    if (object != NULL && head->word != ALIVE + kind)
        end_program(object, kind, head->word);
}
