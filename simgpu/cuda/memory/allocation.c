#define _GNU_SOURCE
#include "cuda/memory/allocation.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state/shared.h"

#define PAGE_BITS 12u

typedef struct node {
    struct node *next; /* list of the allocations that end with a context */
    CUdeviceptr pointer;
    allocation_t allocation;
} node_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *nodes; /* a tree, by address */
static uint64_t last_id;

/* Overlapping ranges compare as equal. The tree never contains two of them. */
static int compare(const void *one, const void *other) {
    const node_t *a = one, *b = other;
    if (a->pointer + a->allocation.bytes <= b->pointer)
        return -1;
    return a->pointer >= b->pointer + b->allocation.bytes;
}

bool memory_map(const allocation_t *allocation, int map_flags, CUdeviceptr *pointer_p) {
    node_t *node = malloc(sizeof *node);
    bool shared = allocation->memory >= 0;
    int kind = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | map_flags;
    void *mapping =
        mmap(NULL, allocation->bytes, PROT_READ | PROT_WRITE, kind, allocation->memory, (off_t)allocation->offset);
    if (node == NULL || mapping == MAP_FAILED) {
        free(node);
        if (mapping != MAP_FAILED)
            munmap(mapping, allocation->bytes);
        return false;
    }
    *node = (node_t){.pointer = (CUdeviceptr)(uintptr_t)mapping, .allocation = *allocation};
    pthread_mutex_lock(&mutex);
    node->allocation.id = ++last_id;
    void *added = tsearch(node, &nodes, compare);
    pthread_mutex_unlock(&mutex);
    if (added == NULL) {
        munmap(mapping, allocation->bytes);
        free(node);
        return false;
    }
    *pointer_p = (CUdeviceptr)(uintptr_t)mapping;
    return true;
}

/* With the lock held. Returns the allocation that contains the address. */
static node_t *find_around(CUdeviceptr address) {
    const node_t key = {.pointer = address, .allocation = {.bytes = 1}};
    node_t **found = tfind(&key, &nodes, compare);
    return found != NULL ? *found : NULL;
}

/* With the lock held. */
static node_t *find(CUdeviceptr pointer) {
    node_t *node = find_around(pointer);
    return node != NULL && node->pointer == pointer ? node : NULL;
}

bool memory_find_containing(CUdeviceptr address, CUdeviceptr *start, allocation_t *found) {
    pthread_mutex_lock(&mutex);
    const node_t *node = find_around(address);
    if (node != NULL) {
        *start = node->pointer;
        *found = node->allocation;
    }
    pthread_mutex_unlock(&mutex);
    return node != NULL;
}

bool memory_find(CUdeviceptr pointer, allocation_t *found) {
    pthread_mutex_lock(&mutex);
    const node_t *node = find(pointer);
    if (node != NULL)
        *found = node->allocation;
    pthread_mutex_unlock(&mutex);
    return node != NULL;
}

/* Replace private memory by shared memory with the same content. Pages of zeros are not copied. */
static bool make_shared(node_t *node) {
    static const char zeros[1u << PAGE_BITS];
    allocation_t *allocation = &node->allocation;
    char *old = (char *)(uintptr_t)node->pointer;
    int memory = shared_make(allocation->gpu, allocation->bytes);
    for (size_t at = 0; memory >= 0 && at < allocation->bytes; at += sizeof zeros) {
        size_t bytes = allocation->bytes - at < sizeof zeros ? allocation->bytes - at : sizeof zeros;
        if (memcmp(old + at, zeros, bytes) != 0 && pwrite(memory, old + at, bytes, (off_t)at) != (ssize_t)bytes) {
            close(memory);
            memory = -1;
        }
    }
    if (memory < 0 || mmap(old, allocation->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) != old)
        return false;
    allocation->memory = memory;
    return true;
}

bool memory_share(CUdeviceptr pointer, allocation_t *found) {
    pthread_mutex_lock(&mutex);
    node_t *node = find(pointer);
    bool shared = node != NULL && node->allocation.pool == NULL && (node->allocation.memory >= 0 || make_shared(node));
    if (shared)
        *found = node->allocation;
    pthread_mutex_unlock(&mutex);
    return shared;
}

/* Unmap memory. Refund it only afterwards: no other process may get it while this one can still use it. */
static void unmap(node_t *node) {
    munmap((void *)(uintptr_t)node->pointer, node->allocation.bytes);
    if (node->allocation.pool == NULL && node->allocation.memory >= 0)
        close(node->allocation.memory);
    free(node);
}

bool memory_remove(CUdeviceptr pointer, allocation_t *removed) {
    pthread_mutex_lock(&mutex);
    node_t *node = find(pointer);
    if (node != NULL)
        (void)tdelete(node, &nodes, compare);
    pthread_mutex_unlock(&mutex);
    if (node == NULL)
        return false;
    *removed = node->allocation;
    unmap(node);
    return true;
}

/* With the lock held: the context that ends, and its allocations. */
static CUcontext ending_context;
static node_t *ended_nodes;

static void add_ended(const void *entry, VISIT visit, int depth) {
    node_t *node = *(node_t *const *)entry;
    (void)depth;
    if ((visit != postorder && visit != leaf) || node->allocation.context != ending_context)
        return;
    node->next = ended_nodes;
    ended_nodes = node;
}

void memory_remove_context(CUcontext context, void (*removed)(const allocation_t *allocation)) {
    pthread_mutex_lock(&mutex);
    ending_context = context;
    twalk(nodes, add_ended);
    while (ended_nodes != NULL) {
        node_t *node = ended_nodes;
        const allocation_t allocation = node->allocation;
        ended_nodes = node->next;
        (void)tdelete(node, &nodes, compare);
        unmap(node);
        removed(&allocation);
    }
    pthread_mutex_unlock(&mutex);
}
