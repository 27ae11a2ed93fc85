#define _GNU_SOURCE
#include "link/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef GPUSHARE_VERSION
#    define GPUSHARE_VERSION "unversioned"
#endif

#define SOCKET_PATH CONTAINER_ARBITER_DIRECTORY "/" ARBITER_SOCKET_NAME
/* Longer than the arbiter needs to identify the pod, which takes up to ten seconds for one just created. */
#ifndef WELCOME_TIMEOUT_MS
#    define WELCOME_TIMEOUT_MS 20000
#endif
#define WIRE_ISOLATION_VERSION 3 /* the first with an isolation in WELCOME */
#define NO_DESCRIPTOR "no descriptor for the connection to the arbiter: raise the container's limit on open files"
#define SENTENCE_MAX (sizeof(wire_refused_t) - sizeof(wire_header_t))
#define RESTART "restart the container to get the library of this node's agent"

typedef union {
    char bytes[WIRE_MAX];
    wire_header_t header;
    wire_welcome_t welcome;
    wire_refused_t refused;
    wire_lease_t lease;
    struct {
        wire_welcome_t welcome;
        wire_isolation_t isolation;
    } isolated;
} message_t;

/* The version chosen by the last WELCOME. */
static uint16_t protocol_version = WIRE_OLDEST;

static bool __attribute__((format(printf, 3, 4))) fail(char *sentence, unsigned size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(sentence, size, format, arguments);
    va_end(arguments);
    return false;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool wait_readable(int socket, int64_t deadline_ms) {
    for (;;) {
        int64_t left_ms = deadline_ms - now_ms();
        struct pollfd descriptor = {.fd = socket, .events = POLLIN};
        int ready = poll(&descriptor, 1, left_ms > 0 ? (int)left_ms : 0);
        if (ready >= 0 || errno != EINTR)
            return ready > 0;
    }
}

static ssize_t receive(int socket, message_t *message, int *descriptors, unsigned *count_p, bool *truncated_p,
                       int flags) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = message, .iov_len = sizeof *message};
    struct msghdr parts = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t length;
    do {
        length = recvmsg(socket, &parts, MSG_CMSG_CLOEXEC | flags);
    } while (length < 0 && errno == EINTR);
    *count_p = 0;
    *truncated_p = length >= 0 && (parts.msg_flags & MSG_CTRUNC) != 0;
    struct cmsghdr *header = length >= 0 ? CMSG_FIRSTHDR(&parts) : NULL;
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        *count_p = (unsigned)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(descriptors, CMSG_DATA(header), *count_p * sizeof(int));
    }
    return length;
}

/* A system call, because send() is a cancellation point and the caller may hold a lock. It does not block: a stopped
 * arbiter reads nothing, and then an answer will not come either. */
static bool send_message(int socket, const void *message, size_t size) {
    ssize_t sent;
    do {
        sent = syscall(SYS_sendto, socket, message, size, MSG_NOSIGNAL | MSG_DONTWAIT, NULL, 0);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)size;
}

/* The timeout applies if the arbiter's backlog is full: after its restart, all processes connect at once. */
static bool connect_arbiter(int *socket_p, unsigned wait_ms, char *sentence, unsigned size) {
    const struct timeval wait = {.tv_sec = wait_ms / 1000, .tv_usec = (suseconds_t)(wait_ms % 1000) * 1000};
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET_PATH};
    *socket_p = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*socket_p < 0 && (errno == EMFILE || errno == ENFILE))
        return fail(sentence, size, NO_DESCRIPTOR);
    (void)setsockopt(*socket_p, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    int connected = -1;
    do {
        connected = connect(*socket_p, (struct sockaddr *)&address, sizeof address);
    } while (connected != 0 && errno == EINTR);
    if (connected == 0)
        return true;
    return fail(sentence, size,
                "the arbiter cannot be reached at " SOCKET_PATH ": %s: CUDA starts in this container once the gpushare "
                "agent runs on this node; then run the program again",
                strerror(errno));
}

static bool check_answer(const message_t *answer, ssize_t length, char *sentence, unsigned size) {
    const wire_header_t *header = &answer->header;
    if (length <= 0)
        return fail(sentence, size, "the arbiter closed the connection without an answer: check the agent's log");
    if (length < (ssize_t)sizeof *header || header->magic != WIRE_MAGIC || header->size != (uint32_t)length)
        return fail(sentence, size, "the arbiter's answer is invalid: " RESTART);
    if (header->type == MESSAGE_REFUSED) {
        size_t sentence_length = (size_t)length - sizeof *header;
        return fail(sentence, size, "the arbiter refused this process: %.*s",
                    (int)(sentence_length < SENTENCE_MAX ? sentence_length : SENTENCE_MAX), answer->refused.sentence);
    }
    if (header->version < WIRE_OLDEST || header->version > WIRE_VERSION)
        return fail(sentence, size, "the arbiter speaks protocol %u and this library %u to %u: " RESTART,
                    header->version, WIRE_OLDEST, WIRE_VERSION);
    if (header->type != MESSAGE_WELCOME || length < (ssize_t)sizeof answer->welcome)
        return fail(sentence, size, "the arbiter's answer has an unknown type (%u): " RESTART, header->type);
    if (answer->welcome.gpu_count > MAX_GPUS || answer->welcome.slot >= LEDGER_SLOTS)
        return fail(sentence, size, "the arbiter's welcome is out of range (%u GPUs, slot %u): " RESTART,
                    answer->welcome.gpu_count, answer->welcome.slot);
    return true;
}

/* The part of WELCOME about the share's isolation; absent for a share of the arbiter. */
static bool read_isolation(const message_t *answer, ssize_t length, wire_isolation_t *isolation, char *sentence,
                           unsigned size) {
    if (answer->header.version < WIRE_ISOLATION_VERSION || length < (ssize_t)sizeof answer->isolated)
        return true;
    *isolation = answer->isolated.isolation;
    bool valid = isolation->isolation <= ISOLATION_NONE && isolation->percent <= 100 &&
                 memchr(isolation->pipe, '\0', sizeof isolation->pipe) != NULL;
    return valid ||
           fail(sentence, size, "the arbiter's welcome has an unknown isolation (%u): " RESTART, isolation->isolation);
}

/* Reading a mapped page beyond the end of its file would kill the process. */
static bool check_pages(const wire_welcome_result_t *result, char *sentence, unsigned size) {
    if (lseek(result->limits, 0, SEEK_END) < PAGE_SIZE ||
        lseek(result->ledger, 0, SEEK_END) < (off_t)result->gpu_count * PAGE_SIZE)
        return fail(sentence, size, "the arbiter's pages are too short for %u GPUs: " RESTART, result->gpu_count);
    uint32_t layout = 0;
    if (pread(result->limits, &layout, sizeof layout, offsetof(limits_page_t, layout)) != sizeof layout ||
        layout != PAGES_LAYOUT)
        return fail(sentence, size, "the arbiter's pages have layout %u and this library knows layout %u: " RESTART,
                    layout, PAGES_LAYOUT);
    return true;
}

#define NO_ANSWER "the arbiter does not answer: check the agent's log, then run the program again"

static void close_all(const int *descriptors, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        if (descriptors[i] >= 0)
            close(descriptors[i]);
    }
}

bool wire_start_join(int *socket_p, unsigned wait_ms, char *sentence, unsigned size) {
    wire_hello_t hello = {.header = {.magic = WIRE_MAGIC,
                                     .version = WIRE_OLDEST,
                                     .type = MESSAGE_HELLO,
                                     .size = sizeof hello,
                                     .newest = WIRE_VERSION},
                          .library_version = GPUSHARE_VERSION};
    if (!connect_arbiter(socket_p, wait_ms, sentence, size)) {
        close_all(socket_p, 1);
        return false;
    }
    if (send_message(*socket_p, &hello, sizeof hello))
        return true;
    close(*socket_p);
    return fail(sentence, size, NO_ANSWER);
}

static bool welcomed(int socket, wire_welcome_result_t *result, wire_answer_t *answer_p, char *sentence,
                     unsigned size) {
    message_t answer;
    int descriptors[2];
    unsigned count;
    bool truncated;
    ssize_t length = receive(socket, &answer, descriptors, &count, &truncated, MSG_DONTWAIT);
    *answer_p = length > 0 ? WIRE_REFUSED : length < 0 && errno == EAGAIN ? WIRE_PENDING : WIRE_CLOSED;
    if (count > 0)
        result->limits = descriptors[0];
    if (count > 1)
        result->ledger = descriptors[1];
    if (*answer_p == WIRE_PENDING || !check_answer(&answer, length, sentence, size))
        return false;
    if (truncated)
        return fail(sentence, size, NO_DESCRIPTOR);
    if (count != 2)
        return fail(sentence, size, "the arbiter's welcome came with %u of 2 pages: " RESTART, count);
    result->slot = answer.welcome.slot;
    result->gpu_count = answer.welcome.gpu_count;
    if (!check_pages(result, sentence, size) || !read_isolation(&answer, length, &result->isolation, sentence, size))
        return false;
    __atomic_store_n(&protocol_version, answer.header.version, __ATOMIC_RELAXED);
    return true;
}

wire_answer_t wire_finish_join(int socket, wire_welcome_result_t *result, char *sentence, unsigned sentence_size) {
    wire_answer_t answer;
    *result = (wire_welcome_result_t){.socket = socket, .limits = -1, .ledger = -1};
    if (welcomed(socket, result, &answer, sentence, sentence_size))
        return WIRE_WELCOMED;
    close_all((const int[]){result->limits, result->ledger}, 2);
    return answer;
}

bool wire_join(wire_welcome_result_t *result, char *sentence, unsigned sentence_size) {
    int socket;
    const uint64_t until_ms = now_ms() + WELCOME_TIMEOUT_MS;
    if (!wire_start_join(&socket, WELCOME_TIMEOUT_MS, sentence, sentence_size))
        return false;
    if (!wait_readable(socket, until_ms))
        (void)fail(sentence, sentence_size, NO_ANSWER);
    else if (wire_finish_join(socket, result, sentence, sentence_size) == WIRE_WELCOMED)
        return true;
    close(socket);
    return false;
}

static wire_header_t header_of(unsigned type, size_t size) {
    uint16_t version = __atomic_load_n(&protocol_version, __ATOMIC_RELAXED);
    return (wire_header_t){.magic = WIRE_MAGIC, .version = version, .type = (uint16_t)type, .size = (uint32_t)size};
}

bool wire_send_lease(int socket, unsigned type, uint32_t gpu, uint32_t flags, uint64_t lease) {
    wire_lease_t message = {.header = header_of(type, sizeof message), .gpu = gpu, .flags = flags, .lease = lease};
    return send(socket, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof message;
}

wire_next_t wire_next(int socket, wire_lease_t *lease) {
    message_t message;
    int descriptors[2];
    unsigned count;
    bool truncated;
    ssize_t length = receive(socket, &message, descriptors, &count, &truncated, MSG_DONTWAIT);
    close_all(descriptors, count);
    if (length < 0 && errno == EAGAIN)
        return WIRE_NOTHING;
    if (length < (ssize_t)sizeof message.header)
        return WIRE_END;
    if (message.header.type == MESSAGE_RECLAIMED)
        return WIRE_RECLAIMED;
    bool measured = message.header.type == MESSAGE_MEASURED;
    if (message.header.type != MESSAGE_OPEN && message.header.type != MESSAGE_REVOKE && !measured)
        return WIRE_UNKNOWN;
    if (length < (ssize_t)sizeof message.lease || message.lease.gpu >= MAX_GPUS)
        return WIRE_END;
    *lease = message.lease;
    return measured ? WIRE_MEASURED : WIRE_LEASE;
}

bool wire_request_reclaim(int socket, uint32_t gpu, uint64_t bytes) {
    if (bytes > 0)
        return wire_send_lease(socket, MESSAGE_RECLAIM, gpu, 0, bytes);
    wire_header_t question = header_of(MESSAGE_RECLAIM, sizeof question);
    return send_message(socket, &question, sizeof question);
}
