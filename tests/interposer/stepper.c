/* Runs a program instruction by instruction and checks after each one that the container is charged for everything
 * that it holds on the GPU. A process can be killed between any two instructions. If its charge is sufficient at
 * each of them, later grants to other processes are never too large.
 *
 *   stepper PID INPUT GPU-FILE LEDGER-FILE [KILL]
 *
 * PID waits for a line on its standard input, whose other end is this program's descriptor INPUT. Prints the number
 * of instructions, and the most bytes held and charged. With KILL it kills the program after that many instructions.
 * Exits with 1 if more was held than charged. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../interposer/base/contract.h"
#include "../../simgpu/image/image.h"

static const void *map(const char *path, size_t bytes) {
    int file = open(path, O_RDONLY);
    const void *mapping = file >= 0 ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    if (mapping == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    return mapping;
}

static uint64_t held_bytes(const image_t *image) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < image->slots_high; i++)
        bytes += image->slots[i].memory_bytes;
    return bytes;
}

static uint64_t charged_bytes(const ledger_page_t *ledger) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < 8; i++)
        bytes += __atomic_load_n(&ledger->slot_bytes[i], __ATOMIC_SEQ_CST);
    return bytes;
}

int main(int count, char **arguments) {
    if (count < 5)
        return 2;
    pid_t pid = atoi(arguments[1]);
    const image_t *image = map(arguments[3], sizeof *image);
    const ledger_page_t *ledger = map(arguments[4], sizeof *ledger);
    uint64_t last = count > 5 ? strtoull(arguments[5], NULL, 10) : UINT64_MAX;
    uint64_t steps = 0, most_held = 0, most_charged = 0;
    int status = 0;
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) != 0 || ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) != 0 ||
        waitpid(pid, &status, 0) != pid || write(atoi(arguments[2]), "\n", 1) != 1) {
        perror("ptrace");
        return 2;
    }
    for (; WIFSTOPPED(status) && steps < last; steps++) {
        uint64_t held = held_bytes(image), charged = charged_bytes(ledger);
        most_held = held > most_held ? held : most_held;
        most_charged = charged > most_charged ? charged : most_charged;
        if (held > charged) {
            printf("after %" PRIu64 " instructions %" PRIu64 " held and %" PRIu64 " charged\n", steps, held, charged);
            return 1;
        }
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0 || waitpid(pid, &status, 0) != pid)
            break;
    }
    if (WIFSTOPPED(status))
        kill(pid, 9);
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", steps, most_held, most_charged);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}
