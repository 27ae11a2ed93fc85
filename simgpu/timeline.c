#define _GNU_SOURCE
#include "timeline.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#include "mig.h"
#include "slots.h"
#include "usage.h"

#define SLICE_NS 2000000ull
#define LOOK_NS 1000000ull /* so often those that have work are looked at: they may be dead */
#define NOBODY IMAGE_SLOTS
#define COMPUTE_MODE_EXCLUSIVE_PROCESS 3u

uint64_t timeline_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void timeline_sleep(uint64_t until_ns) {
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
    while (timeline_now_ns() < until_ns && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

/* Where a queue's work ends, or waits to meet others. */
static uint64_t reach_ns(const image_queue_t *queue) {
    bool meets = queue->met < queue->meetings;
    return meets ? queue->places[queue->met % IMAGE_MEETINGS].at_ns : queue->given_ns;
}

static bool has_work(const image_queue_t *queue) {
    return queue->done_ns < queue->given_ns;
}

static bool takes_part(const gpu_t *gpu, unsigned index) {
    const image_queue_t *queue = &gpu->image->queues[index];
    return queue->instance == gpu->instance && has_work(queue);
}

/* The next one after `index` that has work, around and around; `index` itself comes last. */
static unsigned next_after(const gpu_t *gpu, unsigned index) {
    unsigned high = gpu->image->slots_high;
    for (unsigned i = 1; i <= high; i++) {
        unsigned next = (index + i) % high;
        if (takes_part(gpu, next))
            return next;
    }
    return NOBODY;
}

static bool is_contended(const gpu_t *gpu, unsigned index) {
    unsigned next = next_after(gpu, index);
    return next != NOBODY && next != index;
}

/* From here on the queue is worked at without a pause. */
static void remember(image_queue_t *queue, uint64_t at_ns) {
    image_run_t *last = &queue->runs[(queue->run_count - 1) % IMAGE_RUNS];
    if (queue->run_count == 0 || last->done_ns != queue->done_ns)
        last = &queue->runs[queue->run_count++ % IMAGE_RUNS];
    *last = (image_run_t){.at_ns = at_ns, .done_ns = queue->done_ns};
}

static uint64_t least(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

/* The one whose turn it is goes on until now, the end of its slice, or of its work. */
static void go_on(gpu_t *gpu, image_line_t *line, uint64_t now_ns) {
    image_queue_t *queue = &gpu->image->queues[line->current];
    bool contended = is_contended(gpu, line->current);
    uint64_t left_ns = reach_ns(queue) - queue->done_ns;
    bool spins = left_ns == 0 && has_work(queue);
    uint64_t step_ns = spins ? now_ns - line->at_ns : least(now_ns - line->at_ns, left_ns);
    if (contended)
        step_ns = least(step_ns, line->slice_end_ns > line->at_ns ? line->slice_end_ns - line->at_ns : 0);
    usage_add(gpu->image, line->at_ns, line->at_ns + step_ns);
    line->at_ns += step_ns;
    /* Alone it goes on from one slice to the next: who comes, comes in the middle of one. */
    if (!contended && line->at_ns >= line->slice_end_ns)
        line->slice_end_ns += ((line->at_ns - line->slice_end_ns) / SLICE_NS + 1) * SLICE_NS;
    if (spins) {
        queue->begun = queue->met + 1;
        remember(queue, line->at_ns);
    } else {
        queue->done_ns += step_ns;
    }
    if (!has_work(queue) || (contended && line->at_ns >= line->slice_end_ns))
        line->running = 0;
}

static uint64_t switch_ns(const gpu_t *gpu) {
    /* Clients of MPS are one context. */
    return gpu->image->compute_mode == COMPUTE_MODE_EXCLUSIVE_PROCESS ? 0 : gpu->image->context_switch_ns;
}

static void advance(gpu_t *gpu, image_line_t *line, uint64_t now_ns) {
    while (line->at_ns < now_ns) {
        if (line->running && has_work(&gpu->image->queues[line->current])) {
            go_on(gpu, line, now_ns);
            continue;
        }
        line->running = 0;
        unsigned next = next_after(gpu, line->current);
        if (next == NOBODY) {
            uint64_t at_ns = line->at_ns; /* never back, not even by one that was stopped here */
            while (at_ns < now_ns && !atomic_compare_exchange_weak(&line->at_ns, &at_ns, now_ns))
                continue;
            return;
        }
        if (next != line->current)
            line->at_ns += switch_ns(gpu);
        line->current = next;
        line->slice_end_ns = line->at_ns + SLICE_NS;
        remember(&gpu->image->queues[next], line->at_ns);
        line->running = 1;
    }
}

static void drop_dead(gpu_t *gpu, image_line_t *line, uint64_t now_ns) {
    if (now_ns < line->looked_ns + LOOK_NS)
        return;
    line->looked_ns = now_ns;
    for (unsigned i = 0; i < gpu->image->slots_high; i++) {
        image_queue_t *queue = &gpu->image->queues[i];
        if (takes_part(gpu, i) && (int)i != gpu->slot && !slots_is_alive(gpu, i, queue->pid, queue->start_ticks)) {
            queue->meetings = queue->met;
            queue->given_ns = queue->done_ns;
        }
    }
}

static image_line_t *begin(gpu_t *gpu) {
    slots_queues_begin(gpu);
    image_line_t *line = mig_line(gpu);
    uint64_t now_ns = timeline_now_ns();
    advance(gpu, line, now_ns);
    drop_dead(gpu, line, now_ns);
    return line;
}

static image_queue_t *own(gpu_t *gpu) {
    return &gpu->image->queues[gpu->slot];
}

/* The GPUs on which this process has launched kernels that meet. */
static gpu_t *meeting_gpus[IMAGE_MAX_GPUS];
static _Atomic unsigned meeting_count;

static void note_meeting(gpu_t *gpu) {
    unsigned count = meeting_count;
    for (unsigned i = 0; i < count; i++) {
        if (meeting_gpus[i] == gpu)
            return;
    }
    meeting_gpus[count] = gpu;
    meeting_count = count + 1;
}

static unsigned begun_count(uint64_t number) {
    unsigned begun = 0, count = meeting_count;
    for (unsigned i = 0; i < count; i++)
        begun += own(meeting_gpus[i])->begun > number;
    return begun;
}

/* Those that spin on any GPU of this process, and have met the others, go on. */
static void meet(void) {
    unsigned count = meeting_count;
    for (unsigned i = 0; i < count; i++) {
        image_line_t *line = begin(meeting_gpus[i]);
        image_queue_t *queue = own(meeting_gpus[i]);
        if (queue->begun > queue->met && begun_count(queue->met) >= queue->places[queue->met % IMAGE_MEETINGS].size) {
            queue->met++;
            remember(queue, line->at_ns);
        }
        slots_queues_end(meeting_gpus[i]);
    }
}

static void look(gpu_t *gpu) {
    (void)begin(gpu);
    slots_queues_end(gpu);
    if (meeting_count > 0)
        meet();
}

/* The first of this process finds what one that had its slot before has left. */
static void take_over(gpu_t *gpu) {
    image_queue_t *queue = own(gpu);
    const image_slot_t *slot = &gpu->image->slots[gpu->slot];
    if (queue->pid != slot->pid || queue->start_ticks != slot->start_ticks)
        *queue = (image_queue_t){.pid = slot->pid, .start_ticks = slot->start_ticks, .instance = gpu->instance};
}

uint64_t timeline_queue(gpu_t *gpu, uint64_t duration_ns, unsigned meeting) {
    (void)begin(gpu);
    take_over(gpu);
    image_queue_t *queue = own(gpu);
    while (meeting > 1 && queue->meetings - queue->met >= IMAGE_MEETINGS) {
        uint64_t last_ns = queue->places[queue->met % IMAGE_MEETINGS].at_ns + 1;
        slots_queues_end(gpu);
        timeline_wait(gpu, last_ns);
        (void)begin(gpu);
    }
    if (meeting > 1) {
        queue->places[queue->meetings % IMAGE_MEETINGS] = (image_meeting_t){.at_ns = queue->given_ns, .size = meeting};
        queue->meetings++;
        note_meeting(gpu);
    }
    uint64_t mark_ns = queue->given_ns += duration_ns;
    slots_queues_end(gpu);
    return mark_ns;
}

bool timeline_reached(gpu_t *gpu, uint64_t mark_ns) {
    if (mark_ns == 0 || own(gpu)->done_ns >= mark_ns)
        return true;
    look(gpu);
    return own(gpu)->done_ns >= mark_ns;
}

uint64_t timeline_when_ns(gpu_t *gpu, uint64_t mark_ns) {
    slots_queues_begin(gpu);
    const image_queue_t *queue = own(gpu);
    uint64_t when_ns = 0;
    for (uint64_t i = queue->run_count; i > 0 && i + IMAGE_RUNS > queue->run_count; i--) {
        const image_run_t *run = &queue->runs[(i - 1) % IMAGE_RUNS];
        bool within = run->done_ns < mark_ns;
        when_ns = run->at_ns + (within ? mark_ns - run->done_ns : 0);
        if (within)
            break;
    }
    slots_queues_end(gpu);
    return when_ns;
}

/* When to look again: when the mark will have come if nothing else happens, or sooner if something may. */
static uint64_t look_again_ns(gpu_t *gpu, uint64_t mark_ns) {
    image_line_t *line = begin(gpu);
    const image_queue_t *queue = own(gpu);
    const image_queue_t *current = &gpu->image->queues[line->current];
    bool mine = line->current == (unsigned)gpu->slot, contended = is_contended(gpu, (unsigned)gpu->slot);
    uint64_t at_ns = line->at_ns, left_ns = mark_ns - queue->done_ns;
    uint64_t slice_ns = line->slice_end_ns > at_ns ? line->slice_end_ns - at_ns : 0;
    bool spins = queue->met < queue->meetings && reach_ns(queue) < mark_ns;
    if (spins)
        left_ns = least(left_ns, LOOK_NS / 2);
    if (contended && !(mine && left_ns <= slice_ns))
        left_ns = mine ? slice_ns : least(slice_ns, current->given_ns - current->done_ns) + switch_ns(gpu);
    slots_queues_end(gpu);
    return at_ns + left_ns;
}

void timeline_wait(gpu_t *gpu, uint64_t mark_ns) {
    while (!timeline_reached(gpu, mark_ns)) {
        uint64_t soonest_ns = timeline_now_ns() + 1000;
        uint64_t wake_ns = look_again_ns(gpu, mark_ns);
        timeline_sleep(wake_ns > soonest_ns ? wake_ns : soonest_ns);
    }
}
