/* The limits page and the ledger with arbitrary content that peers change between two calls. The input has the
 * number of GPUs, the slot, the number of steps, the steps, and the content of the pages. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <sys/mman.h>

#include "base/report.h"
#include "fuzz.h"
#include "share/share.h"

#define MOST_STEPS 32u

typedef struct {
    limits_page_t *limits;
    ledger_page_t *ledgers;
    unsigned gpus, slot;
} peer_t;

void report(const char *format, ...) {
    (void)format;
}

static void *map(int descriptor, size_t size) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    LAW(found != MAP_FAILED);
    return found;
}

static void step(const peer_t *peer, input_t *input) {
    unsigned what = (unsigned)input_number(input, 1);
    uint32_t gpu = (uint32_t)(input_number(input, 1) % peer->gpus);
    uint64_t bytes = input_number(input, 8), begin, length;
    uint64_t *own = &peer->ledgers[gpu].slot_bytes[peer->slot], before = *own;
    switch (what % 10) {
    case 0:
    case 1: {
        bool charged = what % 10 == 0 ? share_try_charge(gpu, bytes) : share_charge(gpu, bytes);
        LAW(*own == (charged ? before + bytes : before));
        LAW(!charged || (bytes <= share_limit_bytes(gpu) && share_used_bytes(gpu) <= share_limit_bytes(gpu)));
        break;
    }
    case 2:
        share_refund(gpu, bytes);
        LAW(*own == before - bytes);
        break;
    case 3:
        (void)share_certain(gpu, bytes);
        break;
    case 4:
        share_uncertain(gpu, bytes);
        break;
    case 5:
        if (share_turn(gpu, 100000000, &begin, &length))
            LAW(length > 0);
        (void)share_request_percent(gpu);
        break;
    case 6:
        (void)share_tracks_certain();
        (void)share_context_bytes(gpu);
        break;
    case 7: {
        uint32_t found = share_find_gpu(peer->limits->gpu[bytes % MAX_GPUS].uuid);
        LAW(found == SHARE_NO_GPU || found < peer->gpus);
        break;
    }
    case 8: /* another process of the container */
        peer->ledgers[gpu].slot_bytes[bytes % LEDGER_SLOTS] = input_number(input, 8);
        break;
    default: /* the arbiter */
        memcpy((char *)peer->limits + bytes % (PAGE_SIZE / 4) * 4, input->at, input->left < 4 ? input->left : 4);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input_t input = {data, size};
    wire_welcome_result_t welcome = {.socket = -1, .gpu_count = 1 + (unsigned)(input_number(&input, 1) % MAX_GPUS)};
    welcome.slot = (unsigned)(input_number(&input, 2) % LEDGER_SLOTS);
    unsigned steps = (unsigned)(input_number(&input, 1) % MOST_STEPS);
    size_t ledgers_bytes = welcome.gpu_count * sizeof(ledger_page_t);
    int free_before = fuzz_free_descriptor();
    welcome.limits = memfd_create("limits", MFD_CLOEXEC);
    welcome.ledger = memfd_create("ledger", MFD_CLOEXEC);
    LAW(ftruncate(welcome.limits, PAGE_SIZE) == 0 && ftruncate(welcome.ledger, (off_t)ledgers_bytes) == 0);
    peer_t peer = {map(welcome.limits, PAGE_SIZE), map(welcome.ledger, ledgers_bytes), welcome.gpu_count, welcome.slot};
    input_t content = {input.at + (input.left < steps * 10 ? input.left : steps * 10), 0};
    content.left = input.left - (size_t)(content.at - input.at);
    (void)input_copy(&content, peer.limits, PAGE_SIZE);
    (void)input_copy(&content, peer.ledgers, ledgers_bytes);
    LAW(share_map(&welcome));
    for (unsigned i = 0; i < steps && input.left > 0; i++)
        step(&peer, &input);
    share_unmap();
    munmap(peer.limits, PAGE_SIZE);
    munmap(peer.ledgers, ledgers_bytes);
    LAW(fuzz_free_descriptor() == free_before);
    return 0;
}
