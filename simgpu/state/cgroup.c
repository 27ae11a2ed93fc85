#define _GNU_SOURCE
#include "state/cgroup.h"

#include <limits.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

uint64_t cgroup_of(const char *path) {
    struct statfs system;
    struct stat status;
    if (statfs(path, &system) != 0 || system.f_type != CGROUP2_SUPER_MAGIC || stat(path, &status) != 0)
        return 0;
    return S_ISDIR(status.st_mode) ? status.st_ino : 0;
}

/* The line for version 2: `0::/kubepods/pod1/main`. */
static bool own_path(char *path, size_t size) {
    char line[PATH_MAX];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        found = strncmp(line, "0::", 3) == 0 && strlen(line + 3) < size;
    }
    if (found)
        strcpy(path, line + 3);
    if (file != NULL)
        fclose(file);
    return found;
}

/* Find where the hierarchy is mounted, and which part of it. */
static bool find_mount(char *root, char *point) {
    char line[2 * PATH_MAX];
    bool found = false;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        found = strstr(line, " - cgroup2 ") != NULL && sscanf(line, "%*d %*d %*s %1023s %1023s", root, point) == 2;
    if (file != NULL)
        fclose(file);
    return found;
}

size_t cgroup_own(uint64_t *cgroups, size_t capacity) {
    char own[1024], root[1024], point[1024], path[2048];
    size_t count = 0;
    if (!own_path(own, sizeof own) || !find_mount(root, point))
        return 0;
    size_t above = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(own, root, above) != 0)
        return 0;
    (void)snprintf(path, sizeof path, "%s%s", point, own + above);
    for (size_t top = strlen(point); count < capacity; count++) {
        char *slash = strrchr(path, '/');
        uint64_t cgroup = cgroup_of(path);
        if (cgroup == 0)
            break;
        cgroups[count] = cgroup;
        if (slash == NULL || (size_t)(slash - path) < top)
            return count + 1;
        *slash = '\0';
    }
    return count;
}
