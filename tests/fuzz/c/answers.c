/* An arbiter's answers over a real socket. Each message is a byte that selects the pages sent with it, two bytes for
 * its length, and its content. The first one answers HELLO; a second welcome makes the client join again. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/report.h"
#include "fuzz.h"
#include "link/arbiter.h"
#include "link/wire.h"
#include "share/share.h"

#define KINDS 4u
#define GPUS 2u
#define MOST_MESSAGES 16

typedef enum { LIMITS, LEDGER } page_t;
static int pages[2][KINDS]; /* valid; too short; with another layout; empty */

void report(const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    LAW(vsnprintf(line, sizeof line, format, arguments) >= 0);
    va_end(arguments);
}

static void make_pages(void) {
    static const limits_page_t limits = {.gpu_count = GPUS, .slot_count = 8, .layout = PAGES_LAYOUT};
    static const limits_page_t other = {.gpu_count = GPUS, .slot_count = 8, .layout = PAGES_LAYOUT + 1};
    const off_t sizes[2][KINDS] = {{PAGE_SIZE, 100, PAGE_SIZE, 0},
                                   {GPUS * PAGE_SIZE, PAGE_SIZE, MAX_GPUS * PAGE_SIZE, 0}};
    for (page_t page = LIMITS; page <= LEDGER; page++) {
        for (unsigned kind = 0; kind < KINDS; kind++) {
            pages[page][kind] = memfd_create("fuzz", MFD_CLOEXEC);
            LAW(pages[page][kind] >= 0 && ftruncate(pages[page][kind], sizes[page][kind]) == 0);
        }
    }
    LAW(pwrite(pages[LIMITS][0], &limits, 64, 0) == 64 && pwrite(pages[LIMITS][2], &other, 64, 0) == 64);
}

static void send_one(int socket, input_t *input) {
    char bytes[WIRE_MAX + 64];
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(3 * sizeof(int))];
    } control = {.bytes = {0}};
    unsigned with = (unsigned)input_number(input, 1);
    size_t size = input_number(input, 2) % sizeof bytes;
    size = size < input->left ? size : input->left;
    unsigned count = with & 3;
    int descriptors[3] = {pages[LIMITS][with >> 2 & 3], pages[LEDGER][with >> 4 & 3], pages[LEDGER][0]};
    (void)input_copy(input, bytes, size);
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr parts = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        control.header = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(count * sizeof(int))};
        memcpy(CMSG_DATA(&control.header), descriptors, count * sizeof(int));
        parts.msg_control = &control;
        parts.msg_controllen = CMSG_SPACE(count * sizeof(int));
    }
    (void)sendmsg(socket, &parts, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void use_share(void) {
    for (uint32_t gpu = 0; gpu < share_gpu_count(); gpu++) {
        uint64_t before = share_used_bytes(gpu);
        if (share_try_charge(gpu, 4096))
            share_refund(gpu, 4096);
        LAW(share_used_bytes(gpu) == before);
    }
}

/* Whether the client continued with these pages. */
static bool welcome(int socket, arbiter_map_pages_t *take) {
    wire_welcome_result_t result;
    char sentence[512];
    memset(sentence, 'x', sizeof sentence);
    wire_answer_t answer = wire_finish_join(socket, &result, sentence, sizeof sentence);
    if (answer == WIRE_REFUSED)
        LAW(memchr(sentence, '\0', sizeof sentence) != NULL && sentence[0] != '\0');
    if (answer != WIRE_WELCOMED)
        return false;
    LAW(result.gpu_count <= MAX_GPUS && result.slot < LEDGER_SLOTS);
    return take(&result);
}

static void converse(int socket) {
    wire_lease_t lease;
    if (!welcome(socket, share_map)) {
        share_unmap();
        close(socket);
        return;
    }
    arbiter_begin(socket, share_isolation()->isolation);
    use_share();
    for (unsigned i = 0; i < MOST_MESSAGES && arbiter_receive(&lease); i++) {
        LAW(lease.gpu < MAX_GPUS);
        (void)arbiter_send(MESSAGE_CLOSED, lease.gpu, lease.flags, lease.lease);
    }
    arbiter_end();
    share_unmap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int ends[2];
    input_t input = {data, size};
    if (pages[LIMITS][0] == 0)
        make_pages();
    int free_before = fuzz_free_descriptor();
    bool closes = (input_number(&input, 1) & 1) != 0;
    LAW(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    for (unsigned i = 0; i < MOST_MESSAGES && input.left > 0; i++)
        send_one(ends[1], &input);
    if (closes)
        close(ends[1]);
    converse(ends[0]);
    if (!closes)
        close(ends[1]);
    LAW(fuzz_free_descriptor() == free_before);
    return 0;
}
