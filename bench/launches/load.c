/* A program that uses the GPU in a typical way, and prints how much work it completed.
 *
 *   load async|sync|steps|graph|requests|bursts DURATION_US
 *   load idle DURATION_US
 *   load calibrate
 *
 * async launches and never waits; sync waits for each kernel; steps queues four kernels ahead; graph launches graphs
 * of twenty kernels that take DURATION_US together; requests serves fifty a second, each a kernel, and waits for it;
 * bursts serves two a second, each of 150 kernels; idle prints "ready" after one kernel, and launches no other until
 * stdin ends. With KERNEL in the environment, that kernel of a simulated GPU runs instead.
 *
 * It prints "ready" and reads three moments of CLOCK_MONOTONIC, in milliseconds: when to begin, and the start and
 * end of counting. Prints one line: launches, milliseconds counted, milliseconds of the first launch, then for
 * requests and bursts each latency in microseconds. calibrate prints the SPIN_LOOPS of this GPU. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_calls.h"
#include "spin.h"

#define MS_NS 1000000ull
#define GRAPH_KERNELS 20
#define QUEUED 4
#define REQUEST_NS (20 * MS_NS)
#define BURST_NS (500 * MS_NS)
#define BURST_KERNELS 150
#define MOST_REQUESTS 100000
#define AFTER_NS (300 * MS_NS) /* no program is alone while another one still counts */

extern int cuStreamCreate(void **stream, unsigned flags);
extern int cuStreamSynchronize(void *stream);
extern int cuStreamBeginCapture_v2(void *stream, int mode);
extern int cuStreamEndCapture(void *stream, void **graph);
extern int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
extern int cuGraphLaunch(void *exec, void *stream);
extern int cuEventCreate(void **event, unsigned flags);
extern int cuEventRecord(void *event, void *stream);
extern int cuEventSynchronize(void *event);

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t at_ns) {
    struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        continue;
}

static void *stream, *function, *graph_exec, *events[QUEUED + 1];
static spin_parameters_t parameters;

static void launch(void) {
    check("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.pointers, NULL));
}

static void find(unsigned long duration_us) {
    void *context, *module;
    const char *kernel = getenv("KERNEL");
    check("cuInit", cuInit(0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuModuleLoadData", cuModuleLoadData(&module, spin_module));
    check("cuModuleGetFunction", cuModuleGetFunction(&function, module, kernel != NULL ? kernel : SPIN_KERNEL));
    check("cuStreamCreate", cuStreamCreate(&stream, 0));
    spin_set(&parameters, duration_us * 1000);
}

static double took_ns(unsigned launches) {
    uint64_t begun = now_ns();
    for (unsigned i = 0; i < launches; i++)
        launch();
    check("cuStreamSynchronize", cuStreamSynchronize(stream));
    return (double)(now_ns() - begun);
}

/* The first round raises the clocks; the difference of two lengths excludes the cost of a launch. */
static void calibrate(void) {
    find(1000);
    for (unsigned round = 0; round < 3; round++) {
        double more_ns = took_ns(220) - took_ns(20);
        parameters.loops = (uint64_t)((double)parameters.loops * 200 * 1e6 / more_ns);
    }
    printf("%" PRIu64 "\n", parameters.loops);
}

static void make_graph(void) {
    void *graph;
    check("cuStreamBeginCapture", cuStreamBeginCapture_v2(stream, 0));
    for (unsigned i = 0; i < GRAPH_KERNELS; i++)
        launch();
    check("cuStreamEndCapture", cuStreamEndCapture(stream, &graph));
    check("cuGraphInstantiate", cuGraphInstantiateWithFlags(&graph_exec, graph, 0));
}

static void make_events(void) {
    for (unsigned i = 0; i <= QUEUED; i++) {
        check("cuEventCreate", cuEventCreate(&events[i], 0));
        check("cuEventRecord", cuEventRecord(events[i], stream));
    }
}

/* Record the end of this launch, and wait for that of an earlier one. */
static void wait_for_step(uint64_t launches) {
    check("cuEventRecord", cuEventRecord(events[launches % (QUEUED + 1)], stream));
    check("cuEventSynchronize", cuEventSynchronize(events[(launches + 1) % (QUEUED + 1)]));
}

static void work_once(const char *mode, uint64_t launches) {
    if (graph_exec != NULL)
        check("cuGraphLaunch", cuGraphLaunch(graph_exec, stream));
    else
        launch();
    if (strcmp(mode, "sync") == 0)
        check("cuStreamSynchronize", cuStreamSynchronize(stream));
    if (strcmp(mode, "steps") == 0)
        wait_for_step(launches);
}

static void work(const char *mode, uint64_t from_ns, uint64_t until_ns) {
    uint64_t launches = 0, from_launches = 0, from = 0, until_launches = 0, until = 0;
    uint64_t begun = now_ns(), first = 0, now;
    while ((now = now_ns()) < until_ns + AFTER_NS || launches == 0) { /* at least one launch, however late */
        if (from == 0 && now >= from_ns) {
            from = now;
            from_launches = launches;
        }
        if (until == 0 && now >= until_ns) {
            until = now;
            until_launches = launches;
        }
        work_once(mode, launches);
        if (launches++ == 0)
            first = now_ns() - begun;
    }
    if (until == 0) { /* a launch blocked beyond the end */
        until = now;
        until_launches = launches;
    }
    printf("%" PRIu64 " %.3f %.3f\n", until_launches - from_launches, (double)(until - from) / 1e6,
           (double)first / 1e6);
}

static void serve(uint64_t from_ns, uint64_t until_ns, uint64_t period_ns, unsigned kernels) {
    static double latencies_us[MOST_REQUESTS];
    unsigned count = 0;
    for (uint64_t at_ns = from_ns; at_ns < until_ns + AFTER_NS && count < MOST_REQUESTS; at_ns += period_ns) {
        sleep_until(at_ns);
        for (unsigned i = 0; i < kernels; i++)
            launch();
        check("cuStreamSynchronize", cuStreamSynchronize(stream));
        if (at_ns < until_ns)
            latencies_us[count++] = (double)(now_ns() - at_ns) / 1e3;
    }
    printf("%u %.3f 0", count * kernels, (double)(until_ns - from_ns) / 1e6);
    for (unsigned i = 0; i < count; i++)
        printf(" %.1f", latencies_us[i]);
    printf("\n");
}

int main(int count, char **arguments) {
    uint64_t begin_ms, from_ms, until_ms;
    if (count == 2 && strcmp(arguments[1], "calibrate") == 0) {
        calibrate();
        return EXIT_SUCCESS;
    }
    if (count != 3) {
        fprintf(stderr, "usage: load async|sync|steps|graph|requests|bursts|idle DURATION_US | load calibrate\n");
        return 2;
    }
    const char *mode = arguments[1];
    bool graph = strcmp(mode, "graph") == 0;
    unsigned long duration_us = strtoul(arguments[2], NULL, 10);
    find(graph ? duration_us / GRAPH_KERNELS : duration_us);
    if (graph)
        make_graph();
    if (strcmp(mode, "steps") == 0)
        make_events();
    if (strcmp(mode, "idle") == 0) {
        launch();
        check("cuStreamSynchronize", cuStreamSynchronize(stream));
    }
    printf("ready\n");
    fflush(stdout);
    if (strcmp(mode, "idle") == 0) {
        (void)getchar();
        return EXIT_SUCCESS;
    }
    if (scanf("%" SCNu64 " %" SCNu64 " %" SCNu64, &begin_ms, &from_ms, &until_ms) != 3)
        return EXIT_FAILURE;
    sleep_until(begin_ms * MS_NS);
    if (strcmp(mode, "requests") == 0)
        serve(from_ms * MS_NS, until_ms * MS_NS, REQUEST_NS, 1);
    else if (strcmp(mode, "bursts") == 0)
        serve(from_ms * MS_NS, until_ms * MS_NS, BURST_NS, BURST_KERNELS);
    else
        work(mode, from_ms * MS_NS, until_ms * MS_NS);
    /* A simulated GPU would run the queued work, and the next program would have to wait for it. */
    check("cuCtxSynchronize", cuCtxSynchronize());
    return EXIT_SUCCESS;
}
