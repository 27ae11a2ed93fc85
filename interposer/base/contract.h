/* The part of gpushare/contract.py that the library needs; tests/contract compares the two files. */
#ifndef GPUSHARE_CONTRACT_H
#define GPUSHARE_CONTRACT_H

#include <stdint.h>

/* Paths inside a share container, mounted by the agent. */
#define CONTAINER_LIBRARY "/usr/lib/gpushare/libgpushare.so"
#define CONTAINER_ARBITER_DIRECTORY "/run/gpushare"
#define ARBITER_SOCKET_NAME "arbiter.sock"

/* Arbiter protocol: SOCK_SEQPACKET, little-endian. */
#define WIRE_MAGIC 0x48535047u
#define WIRE_OLDEST 1
#define WIRE_VERSION 2
#define MESSAGE_HELLO 1     /* library -> arbiter */
#define MESSAGE_WELCOME 2   /* arbiter -> library, with two descriptors: limits, ledger */
#define MESSAGE_REFUSED 3   /* arbiter -> library: one sentence */
#define MESSAGE_RECLAIM 4   /* library -> arbiter: are there dead processes' bytes? */
#define MESSAGE_RECLAIMED 5 /* arbiter -> library: bytes freed */
#define MESSAGE_WANT 6      /* library -> arbiter: there is something to launch */
#define MESSAGE_OPEN 7      /* arbiter -> library: launch until it is revoked; the same lease again: other flags */
#define MESSAGE_REVOKE 8    /* arbiter -> library: launch nothing more, give it back; lease 0: whatever it is */
#define MESSAGE_CLOSED 9    /* library -> arbiter: nothing more is launched, what runs ends within milliseconds */
#define MESSAGE_RELEASED 10 /* library -> arbiter: nothing runs any more; also unasked */
#define MESSAGE_MEASURE 11  /* library -> arbiter: how much of the GPU is nobody known to hold, from now on? */
#define MESSAGE_MEASURED 12 /* arbiter -> library: at most so much; UINT64_MAX: not known */
#define LEASE_HELD 1        /* in WANT: the gate is open since before */
#define LEASE_COUNTED 2     /* in OPEN: do not run far ahead */
#define LEASE_CONTENDED 4   /* in OPEN: give it back as soon as there is nothing to do */
#define LEASE_BRIEF 8       /* in OPEN: run ahead still less, somebody may have to be served at once */
#define WIRE_MAX 512

typedef struct {
    uint32_t magic;
    uint16_t version; /* that is spoken; in HELLO the oldest one that the library speaks */
    uint16_t type;
    uint32_t size;   /* of the whole message */
    uint32_t newest; /* in HELLO: the newest version that the library speaks */
} wire_header_t;

typedef struct {
    wire_header_t header;
    char library_version[32];
} wire_hello_t;

typedef struct {
    wire_header_t header;
    uint32_t gpu_count;
    uint32_t slot;
} wire_welcome_t;

typedef struct {
    wire_header_t header;
    char sentence[256];
} wire_refused_t;

typedef struct {
    wire_header_t header;
    uint64_t bytes;
} __attribute__((packed)) wire_reclaimed_t;

typedef struct {
    wire_header_t header;
    uint32_t gpu; /* the record in the limits page */
    uint32_t flags;
    uint64_t lease;
} wire_lease_t; /* in MEASURE and MEASURED `flags` is the asker's number, `lease` bytes */

/* The limits page: written by the arbiter, read-only here. */
#define PAGE_SIZE 4096
#define PAGES_LAYOUT 0
#define MAX_GPUS 63

typedef struct {
    uint8_t uuid[16];
    uint64_t memory_bytes;
    uint32_t request_percent;
    uint32_t limit_percent;
    uint64_t overhead_bytes;      /* what the processes hold beyond what they have charged, as it was measured */
    uint64_t context_bytes;       /* what a process charges for its first context, before it makes it */
    uint32_t turn_begin_permille; /* of each 100 ms: when it launches while there is no arbiter */
    uint32_t turn_permille;       /* for so long; 0: not said */
    uint8_t reserved[8];
} limits_record_t;

typedef struct {
    uint32_t gpu_count;
    uint32_t slot_count; /* slots ever handed out: how far a sum must look */
    uint32_t layout;
    uint32_t certain_slot; /* CERTAIN_SLOT; 0: nobody looks for what is certain */
    uint8_t reserved[48];
    limits_record_t gpu[MAX_GPUS];
} limits_page_t;

/* The ledger pages: one a GPU, in the order of the records; one slot a process. */
#define LEDGER_SLOTS 512
#define CERTAIN_SLOT 256 /* from here on: what the process of slot - CERTAIN_SLOT certainly has of the GPU */
#define CERTAIN_BITS 42  /* the rest counts how often that was about to be less */

typedef struct {
    uint64_t slot_bytes[LEDGER_SLOTS];
} ledger_page_t;

#endif
