#define _GNU_SOURCE
#include "command/description.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

typedef bool (*parse_t)(const char *text, void *field);

typedef struct {
    const char *name;
    size_t offset;
    parse_t parse;
    const char *remedy; /* continues "invalid KEY = VALUE: write" */
} description_key_t;

typedef struct {
    const char *path;
    unsigned line;
    char *error;
    unsigned error_size;
} place_t;

static bool __attribute__((format(printf, 2, 3))) fail(const place_t *place, const char *format, ...) {
    int length = snprintf(place->error, place->error_size, "%s:%u: ", place->path, place->line);
    va_list arguments;
    va_start(arguments, format);
    if (length > 0 && (unsigned)length < place->error_size)
        (void)vsnprintf(place->error + length, place->error_size - (unsigned)length, format, arguments);
    va_end(arguments);
    return false;
}

static bool parse_text(const char *text, char *field, size_t size) {
    size_t length = strlen(text);
    if (length == 0 || length >= size)
        return false;
    memcpy(field, text, length + 1);
    return true;
}

static bool parse_name(const char *text, void *field) {
    return parse_text(text, field, sizeof((description_t *)0)->name);
}

static bool parse_version(const char *text, void *field) {
    return parse_text(text, field, sizeof((description_t *)0)->driver_version);
}

static bool parse_model(const char *text, void *field) {
    return parse_text(text, field, sizeof((description_gpu_t *)0)->model);
}

static bool parse_number(const char *text, void *field) {
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0 || number > 4096)
        return false;
    *(unsigned *)field = (unsigned)number;
    return true;
}

static bool parse_microseconds(const char *text, void *field) {
    unsigned number;
    int used = 0;
    bool fine = sscanf(text, "%4uus%n", &number, &used) == 1 && used > 0 && text[used] == '\0' && number <= 4096;
    if (fine)
        *(uint64_t *)field = number * 1000ull;
    return fine;
}

static bool parse_kernel(const char *text, void *field) {
    *(uint64_t *)field = 0;
    return strcmp(text, "none") == 0 || (parse_microseconds(text, field) && *(uint64_t *)field > 0);
}

static bool parse_count(const char *text, void *field) {
    return parse_number(text, field) && *(unsigned *)field >= 1 && *(unsigned *)field <= IMAGE_MAX_GPUS;
}

static bool parse_numa(const char *text, void *field) {
    if (strcmp(text, "none") == 0) {
        *(int *)field = -1;
        return true;
    }
    return parse_number(text, field);
}

static bool parse_switch(const char *text, void *field) {
    if (strcmp(text, "none") == 0) {
        *(unsigned *)field = IMAGE_NO_SWITCH;
        return true;
    }
    return parse_number(text, field);
}

static bool parse_cuda_version(const char *text, void *field) {
    unsigned major, minor;
    int used = 0;
    if (sscanf(text, "%2u.%2u%n", &major, &minor, &used) != 2 || text[used] != '\0')
        return false;
    *(unsigned *)field = major * 1000 + minor * 10;
    return true;
}

static bool parse_capability(const char *text, void *field) {
    unsigned *pair = field; /* major and minor are adjacent, checked below */
    int used = 0;
    return sscanf(text, "%2u.%2u%n", &pair[0], &pair[1], &used) == 2 && text[used] == '\0';
}
_Static_assert(offsetof(description_gpu_t, compute_capability_minor) ==
                   offsetof(description_gpu_t, compute_capability_major) + sizeof(unsigned),
               "parse_capability writes both");

static bool parse_pci(const char *text, void *field) {
    unsigned *pair = field; /* domain and bus are adjacent, checked below */
    int used = 0;
    return sscanf(text, "%8x:%2x:00.0%n", &pair[0], &pair[1], &used) == 2 && used > 0 && text[used] == '\0';
}
_Static_assert(offsetof(description_gpu_t, pci_bus) == offsetof(description_gpu_t, pci_domain) + sizeof(unsigned),
               "parse_pci writes both");

static bool parse_memory(const char *text, void *field) {
    static const struct {
        const char *unit;
        unsigned shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"Ki", 10}, {"MiB", 20}, {"Mi", 20}, {"GiB", 30}, {"Gi", 30}};
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || errno != 0 || number == 0)
        return false;
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        if (strcmp(end, units[i].unit) == 0 && number <= (UINT64_MAX >> 8) >> units[i].shift) {
            *(uint64_t *)field = (uint64_t)number << units[i].shift;
            return true;
        }
    }
    return false;
}

static bool parse_uuid(const char *text, void *field) {
    static const char shape[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    if (strlen(text) != sizeof shape - 1)
        return false;
    for (size_t i = 0; i < sizeof shape - 1; i++) {
        bool fine = shape[i] == 'x' ? isxdigit((unsigned char)text[i]) && !isupper((unsigned char)text[i])
                                    : text[i] == shape[i];
        if (!fine)
            return false;
    }
    memcpy(field, text, sizeof shape);
    return true;
}

static bool parse_fabric(const char *text, void *field) {
    description_gpu_t *gpu = field;
    char uuid[sizeof gpu->fabric_uuid];
    const char *point = strchr(text, '.');
    if (point == NULL || (size_t)(point - text) >= sizeof uuid - strlen("GPU-"))
        return false;
    (void)snprintf(uuid, sizeof uuid, "GPU-%.*s", (int)(point - text), text);
    return parse_uuid(uuid, gpu->fabric_uuid) && parse_number(point + 1, &gpu->fabric_clique);
}

static bool parse_yes(const char *text, void *field) {
    *(bool *)field = strcmp(text, "yes") == 0;
    return *(bool *)field || strcmp(text, "no") == 0;
}

static bool parse_peers(const char *text, void *field) {
    uint64_t *peers = field;
    *peers = strcmp(text, "all") == 0 ? UINT64_MAX : 0;
    if (*peers != 0 || strcmp(text, "none") == 0)
        return true;
    for (const char *at = text;; at++) {
        char *end;
        unsigned long peer = strtoul(at, &end, 10);
        if (end == at || peer >= IMAGE_MAX_GPUS)
            return false;
        *peers |= 1ull << peer;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        at = end;
    }
}

#define NODE(key, field, parse, remedy) {key, offsetof(description_t, field), parse, remedy}
static const description_key_t node_keys[] = {
    NODE("name", name, parse_name, "1 to 63 characters"),
    NODE("driver-version", driver_version, parse_version, "a version of at most 31 characters, such as 550.54.15"),
    NODE("cuda-version", cuda_version, parse_cuda_version, "major.minor, such as 12.4"),
};

#define GPU(key, field, parse, remedy) {key, offsetof(description_gpu_t, field), parse, remedy}
static const description_key_t gpu_keys[] = {
    GPU("count", count, parse_count, "a number from 1 to 64"),
    GPU("model", model, parse_model, "the name NVML gives, at most 95 characters, such as NVIDIA A100-SXM4-80GB"),
    GPU("memory", memory_bytes, parse_memory, "bytes, or a whole number with KiB, MiB or GiB, such as 80GiB"),
    GPU("context-memory", context_bytes, parse_memory, "bytes, or a whole number with KiB or MiB, such as 300MiB"),
    GPU("memory-block", block_bytes, parse_memory, "bytes, or a whole number with KiB or MiB, such as 2MiB"),
    GPU("uuid", uuid, parse_uuid,
        "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx in lower case, or remove it to have one derived"),
    GPU("compute-capability", compute_capability_major, parse_capability, "major.minor, such as 8.0"),
    GPU("pci-bus-id", pci_domain, parse_pci, "domain:bus:00.0 in hex, such as 00000000:07:00.0"),
    GPU("numa-node", numa_node, parse_numa, "a number, or none"),
    GPU("pci-switch", pci_switch, parse_switch, "a number shared by the GPUs under one switch, or none"),
    GPU("nvlink", nvlink_peers, parse_peers, "all, none, or the GPUs' numbers, such as 0,1"),
    GPU("mig-capable", mig_capable, parse_yes, "yes or no"),
    GPU("multiprocessors", multiprocessors, parse_number, "a number, such as 108"),
    {"fabric", 0, parse_fabric, "CLUSTER.CLIQUE, with a UUID in lower case and a number"},
    GPU("kernel-duration", kernel_ns, parse_kernel,
        "microseconds from 1us to 4096us, such as 10us, or none, which allows only kernels with durations in their "
        "names"),
    GPU("context-switch", context_switch_ns, parse_microseconds, "microseconds from 0us to 4096us, such as 100us"),
};

static char *trim(char *text) {
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
    return text;
}

static bool set_key(const place_t *place, const description_key_t *keys, size_t count, void *base, const char *name,
                    const char *value) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(keys[i].name, name) != 0)
            continue;
        if (keys[i].parse(value, (char *)base + keys[i].offset))
            return true;
        return fail(place, "invalid %s = \"%s\": write %s", name, value, keys[i].remedy);
    }
    char known[512] = "";
    for (size_t i = 0; i < count; i++) {
        strcat(known, i == 0 ? "" : ", ");
        strcat(known, keys[i].name);
    }
    return fail(place, "unknown key %s = \"%s\": the keys of this section are %s", name, value, known);
}

static bool open_section(const place_t *place, description_t *description, const char *header, bool *in_node_p) {
    unsigned index;
    int used = 0;
    *in_node_p = strcmp(header, "[node]") == 0;
    if (*in_node_p)
        return true;
    if (sscanf(header, "[gpu %u]%n", &index, &used) != 1 || used == 0 || header[used] != '\0' ||
        index >= IMAGE_MAX_GPUS)
        return fail(place, "invalid section %s: write [node], or [gpu N] with N from 0 to 63", header);
    if (description->gpu_count == IMAGE_MAX_GPUS)
        return fail(place, "too many sections at %s: a node has at most 64 GPUs", header);
    description->gpus[description->gpu_count++] = (description_gpu_t){
        .index = index,
        .count = 1,
        .line = place->line,
        .numa_node = -1,
        .pci_switch = IMAGE_NO_SWITCH,
        .pci_bus = index + 1,
        .multiprocessors = 108,
        .context_switch_ns = 100000,
        .kernel_ns = 10000,
    };
    return true;
}

static bool read_line(const place_t *place, description_t *description, char *line, bool *in_node_p) {
    line[strcspn(line, "#;")] = '\0';
    char *text = trim(line);
    if (*text == '\0')
        return true;
    if (*text == '[')
        return open_section(place, description, text, in_node_p);

    char *equals = strchr(text, '=');
    if (equals == NULL)
        return fail(place, "invalid line \"%s\": write key = value", text);
    *equals = '\0';
    const char *name = trim(text);
    const char *value = trim(equals + 1);
    if (*in_node_p)
        return set_key(place, node_keys, COUNT_OF(node_keys), description, name, value);
    if (description->gpu_count == 0)
        return fail(place, "%s = \"%s\" is outside any section: write [node] or [gpu 0] above it", name, value);
    return set_key(place, gpu_keys, COUNT_OF(gpu_keys), &description->gpus[description->gpu_count - 1], name, value);
}

static bool check(place_t *place, const description_t *description) {
    uint64_t taken = 0;
    if (description->gpu_count == 0)
        return fail(place, "missing section [gpu N]: add [gpu 0] with model, memory and compute-capability");
    for (unsigned i = 0; i < description->gpu_count; i++) {
        const description_gpu_t *gpu = &description->gpus[i];
        place->line = gpu->line;
        if (gpu->model[0] == '\0')
            return fail(place, "[gpu %u] has no model: add one, such as model = NVIDIA L4", gpu->index);
        if (gpu->memory_bytes == 0)
            return fail(place, "[gpu %u] has no memory: add it, such as memory = 24GiB", gpu->index);
        if (gpu->compute_capability_major == 0)
            return fail(place, "[gpu %u] has no compute-capability: add it, such as compute-capability = 8.9",
                        gpu->index);
        if (gpu->count > 1 && gpu->uuid[0] != '\0')
            return fail(place, "uuid = \"%s\" with count = \"%u\": write a section for each GPU, or remove uuid",
                        gpu->uuid, gpu->count);
        if (gpu->index + gpu->count > IMAGE_MAX_GPUS || gpu->pci_bus + gpu->count > 256)
            return fail(place,
                        "count = \"%u\" exceeds 64 GPUs or 255 PCI buses in a node: lower it, or the number of the "
                        "first GPU or bus",
                        gpu->count);
        for (unsigned n = gpu->index; n < gpu->index + gpu->count; n++) {
            if (taken & 1ull << n)
                return fail(place, "GPU %u has two sections: change the number of this one", n);
            taken |= 1ull << n;
        }
    }
    return true;
}

bool description_read(const char *path, description_t *description, char *error, unsigned error_size) {
    place_t place = {.path = path, .error = error, .error_size = error_size};
    *description =
        (description_t){.name = "simgpu", .driver_version = "550.54.15", .cuda_version = 12040, .gpu_count = 0};
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        (void)snprintf(error, error_size,
                       "%s: %s: give the path of a description, such as simgpu/samples/two-models.ini", path,
                       strerror(errno));
        return false;
    }
    char line[1024];
    bool in_node = false;
    bool fine = true;
    while (fine && fgets(line, sizeof line, file) != NULL) {
        place.line++;
        fine = read_line(&place, description, line, &in_node);
    }
    fclose(file);
    return fine && check(&place, description);
}
