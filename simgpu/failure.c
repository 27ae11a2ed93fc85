#include "failure.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define EVENT_DOUBLE_BIT_ECC 0x2u
#define EVENT_XID 0x8u
#define XID_DOUBLE_BIT_ECC 48u
#define XID_OFF_THE_BUS 79u

/* The entry first, the count second: a reader that sees the count sees the entry. */
static void append_event(image_t *image, uint64_t type, uint64_t data) {
    uint64_t number = image->event_count;
    image->events[number % IMAGE_EVENTS] = (image_event_t){.type = type, .data = data};
    image->event_count = number + 1;
}

static void lose(image_t *image) {
    image->lost = 1;
    append_event(image, EVENT_XID, XID_OFF_THE_BUS);
}

bool failure_inject(gpu_t *gpu, const char *what) {
    image_t *image = gpu->image;
    if (strcmp(what, "lost") == 0) {
        lose(image);
        return true;
    }
    if (strcmp(what, "mute") == 0) {
        image->mute = 1;
        return true;
    }
    if (strcmp(what, "silent") == 0) {
        image->silent = 1;
        return true;
    }
    if (strcmp(what, "hung") == 0) {
        image->hung = 1;
        return true;
    }
    if (strcmp(what, "ecc") == 0) {
        image->ecc_uncorrected++;
        image->ecc_failed = 1;
        append_event(image, EVENT_DOUBLE_BIT_ECC, 0);
        append_event(image, EVENT_XID, XID_DOUBLE_BIT_ECC);
        return true;
    }
    if (strncmp(what, "xid=", 4) == 0 && isdigit((unsigned char)what[4])) {
        char *end;
        unsigned long xid = strtoul(what + 4, &end, 10);
        if (*end != '\0' || xid == 0 || xid > 1000)
            return false;
        if (xid == XID_OFF_THE_BUS)
            lose(image);
        else
            append_event(image, EVENT_XID, xid);
        return true;
    }
    return false;
}

void failure_heal(gpu_t *gpu) {
    gpu->image->lost = 0;
    gpu->image->mute = 0;
    gpu->image->silent = 0;
    gpu->image->hung = 0;
    gpu->image->ecc_failed = 0;
}
