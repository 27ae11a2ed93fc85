/* The part of gpushare/contract.py that the library needs. tests/contract compares the two files. */
#ifndef GPUSHARE_CONTRACT_H
#define GPUSHARE_CONTRACT_H

#include <stdint.h>

/* Paths inside a container with a share, mounted by the agent. */
#define CONTAINER_LIBRARY "/usr/lib/gpushare/libgpushare.so"
#define CONTAINER_ARBITER_DIRECTORY "/run/gpushare"
#define ARBITER_SOCKET_NAME "arbiter.sock"
#define CONTAINER_MPS_PARTITION "/run/gpushare-mps-partition" /* for an MPS client with an SM partition */
#define MPS_PARTITION_NAME "name"                             /* the file with the partition's name */

/* Arbiter protocol: SOCK_SEQPACKET, little-endian. */
#define WIRE_MAGIC 0x48535047u
#define WIRE_OLDEST 1
#define WIRE_VERSION 3      /* from 3 on the library obeys the isolation in WELCOME */
#define MESSAGE_HELLO 1     /* library -> arbiter */
#define MESSAGE_WELCOME 2   /* arbiter -> library, with two descriptors: limits, ledger */
#define MESSAGE_REFUSED 3   /* arbiter -> library: one sentence */
#define MESSAGE_RECLAIM 4   /* library -> arbiter: refund the bytes of dead processes, and lend memory if it asks */
#define MESSAGE_RECLAIMED 5 /* arbiter -> library: bytes freed */
#define MESSAGE_WANT 6      /* library -> arbiter: a launch is waiting */
#define MESSAGE_OPEN 7      /* arbiter -> library: launch until REVOKE; the same lease again changes its flags */
#define MESSAGE_REVOKE 8    /* arbiter -> library: stop launching and return the lease; lease 0: any lease */
#define MESSAGE_CLOSED 9    /* library -> arbiter: launching has stopped, pending work ends within milliseconds */
#define MESSAGE_RELEASED 10 /* library -> arbiter: no work is pending; also sent without REVOKE */
#define MESSAGE_MEASURE 11  /* library -> arbiter: measure the GPU memory that no process is known to hold */
#define MESSAGE_MEASURED 12 /* arbiter -> library: the measured upper bound; UINT64_MAX: unknown */
#define LEASE_HELD 1        /* in WANT: the gate is already open */
#define LEASE_COUNTED 2     /* in OPEN: do not run far ahead */
#define LEASE_CONTENDED 4   /* in OPEN: return the lease when idle */
#define LEASE_BRIEF 8       /* in OPEN: use smaller batches, a latency share may need the GPU at any time */
#define WIRE_MAX 512
#define ISOLATION_ARBITER 0
#define ISOLATION_MPS 1
#define ISOLATION_NONE 2

typedef struct {
    uint32_t magic;
    uint16_t version; /* the one in use; in HELLO the oldest that the library speaks */
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
    uint32_t isolation;
    uint32_t percent; /* of the multiprocessors, for an MPS client */
    char pipe[128];   /* the MPS daemon's directory */
} wire_isolation_t;   /* follows in WELCOME, unless the isolation is ISOLATION_ARBITER */

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
    uint32_t gpu; /* index of the record in the limits page */
    uint32_t flags;
    uint64_t lease;
} wire_lease_t; /* in MEASURE and MEASURED, `flags` is the request's number and `lease` the bytes; in RECLAIM, `lease`
                   too */

/* The limits page. The arbiter writes it; the library only reads it. */
#define PAGE_SIZE 4096
#define PAGES_LAYOUT 0
#define MAX_GPUS 63

typedef struct {
    uint8_t uuid[16];
    uint64_t memory_bytes;
    uint32_t request_percent;
    uint32_t limit_percent;
    uint64_t overhead_bytes;      /* measured: what the processes hold beyond their charges */
    uint64_t context_bytes;       /* the charge for a process's first context, before it is created */
    uint32_t turn_begin_permille; /* start of its turn in each 100 ms while there is no arbiter */
    uint32_t turn_permille;       /* length of the turn; 0: not set */
    uint64_t burst_bytes;         /* up to which the arbiter may raise memory_bytes when asked; 0: not set */
} limits_record_t;

typedef struct {
    uint32_t gpu_count;
    uint32_t slot_count; /* slots assigned so far: a sum covers these */
    uint32_t layout;
    uint32_t certain_slot; /* CERTAIN_SLOT; 0: the arbiter does not read certain bytes */
    uint8_t reserved[48];
    limits_record_t gpu[MAX_GPUS];
} limits_page_t;

/* The ledger: one page per GPU, in the order of the records; one slot per process. */
#define LEDGER_SLOTS 512
#define CERTAIN_SLOT 256 /* from here on: the bytes that the process in slot - CERTAIN_SLOT certainly has */
#define CERTAIN_BITS 42  /* the other bits count the decreases */

typedef struct {
    uint64_t slot_bytes[LEDGER_SLOTS];
} ledger_page_t;

#endif
