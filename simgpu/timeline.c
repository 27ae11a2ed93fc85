#define _GNU_SOURCE
#include "timeline.h"

#include <errno.h>
#include <time.h>

#include "mig.h"
#include "slots.h"
#include "turns.h"

#define LOOK_NS 1000000ull /* so often those that have work are looked at: they may be dead */
#define SOON_NS 250000ull  /* so often somebody looks who cannot know when to */
#define MOMENT_NS 1000u

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

static image_queue_t *own(const gpu_t *gpu) {
    return image_queue(gpu->image, (unsigned)gpu->slot);
}

static void drop_dead(gpu_t *gpu, image_line_t *line, uint64_t now_ns) {
    if (now_ns < line->looked_ns + LOOK_NS)
        return;
    line->looked_ns = now_ns;
    for (unsigned i = 0; i < gpu->image->slots_high; i++) {
        image_queue_t *queue = image_queue(gpu->image, i);
        if (queue->instance == gpu->instance && (int)i != gpu->slot && channels_have_work(queue) &&
            !slots_is_alive(gpu, i, queue->pid, queue->start_ticks))
            channels_drop(queue);
    }
}

static image_line_t *begin(gpu_t *gpu) {
    slots_queues_begin(gpu);
    image_line_t *line = mig_line(gpu);
    uint64_t now_ns = timeline_now_ns();
    turns_advance(gpu->image, gpu->instance, line, now_ns);
    drop_dead(gpu, line, now_ns);
    return line;
}

static void look(gpu_t *gpu) {
    (void)begin(gpu);
    slots_queues_end(gpu);
}

/* The first of this process finds what one that had its slot before has left. */
static void take_over(gpu_t *gpu) {
    image_queue_t *queue = own(gpu);
    const image_slot_t *slot = &gpu->image->slots[gpu->slot];
    if (queue->pid == slot->pid && queue->start_ticks == slot->start_ticks)
        return;
    channels_drop(queue);
    queue->pid = slot->pid;
    queue->start_ticks = slot->start_ticks;
    queue->instance = gpu->instance;
    queue->mps = gpu->mps;
    queue->percent = gpu->percent;
    for (unsigned i = 0; i < IMAGE_BUCKETS; i++)
        queue->busy_buckets[i] = 0;
}

static uint64_t look_again_ns(gpu_t *gpu, image_line_t *line, uint64_t mark) {
    uint64_t soon_ns = timeline_now_ns() + SOON_NS;
    uint64_t when_ns = turns_look_again_ns(gpu->image, gpu->instance, line, (unsigned)gpu->slot, mark);
    return when_ns < UINT64_MAX ? when_ns : soon_ns;
}

static void sleep_from_now(uint64_t until_ns) {
    uint64_t soonest_ns = timeline_now_ns() + MOMENT_NS;
    timeline_sleep(until_ns > soonest_ns ? until_ns : soonest_ns);
}

uint64_t timeline_queue(gpu_t *gpu, _Atomic uint64_t *stream, const gpu_work_t *work) {
    image_line_t *line = begin(gpu);
    take_over(gpu);
    image_queue_t *queue = own(gpu);
    image_launch_t *launch;
    while ((launch = channel_take(queue, *stream, work->context, work->order)) == NULL) {
        uint64_t until_ns = look_again_ns(gpu, line, 0);
        slots_queues_end(gpu);
        sleep_from_now(until_ns);
        line = begin(gpu);
    }
    launch->left_ns = work->duration_ns;
    launch->percent = (uint8_t)work->percent;
    atomic_store_explicit(&launch->held, work->held, memory_order_relaxed);
    launch->after = work->after;
    uint64_t mark = channel_give(queue, launch);
    atomic_store_explicit(stream, mark, memory_order_release);
    slots_queues_end(gpu);
    return mark;
}

bool timeline_reached(gpu_t *gpu, uint64_t mark) {
    if (mark == 0 || mark_reached(own(gpu), mark))
        return true;
    look(gpu);
    return mark_reached(own(gpu), mark);
}

static image_launch_t *head_at(gpu_t *gpu, uint64_t mark) {
    image_queue_t *queue = own(gpu);
    image_launch_t *head = channel_head(queue, &queue->channels[mark_index(mark)]);
    return head != NULL && head->number == mark_number(mark) ? head : NULL;
}

bool timeline_begun(gpu_t *gpu, uint64_t mark, uint64_t *again_ns_p) {
    image_line_t *line = begin(gpu);
    uint64_t before = mark_make(MARK_CHANNEL, mark_index(mark), mark_number(mark) - 1);
    uint64_t soon_ns = timeline_now_ns() + SOON_NS;
    const image_launch_t *head = head_at(gpu, mark);
    bool begun = head != NULL && head->begun;
    *again_ns_p = head == NULL ? look_again_ns(gpu, line, before) : soon_ns;
    slots_queues_end(gpu);
    return begun;
}

void timeline_release(gpu_t *gpu, uint64_t mark) {
    (void)begin(gpu);
    image_launch_t *head = head_at(gpu, mark);
    if (head != NULL)
        head->held = 0;
    slots_queues_end(gpu);
}

/* Of more than one channel: when the last one had ended. */
uint64_t timeline_when_ns(gpu_t *gpu, uint64_t mark) {
    slots_queues_begin(gpu);
    const image_queue_t *queue = own(gpu);
    uint64_t number = mark_number(mark), oldest = queue->number > IMAGE_ENDS ? queue->number - IMAGE_ENDS + 1 : 1;
    uint64_t when_ns = queue->ended_ns[(number > oldest ? number : oldest) % IMAGE_ENDS];
    for (uint64_t i = oldest; mark_scope(mark) != MARK_CHANNEL && i < number; i++) {
        uint64_t ended_ns = queue->ended_ns[i % IMAGE_ENDS];
        when_ns = ended_ns > when_ns ? ended_ns : when_ns;
    }
    slots_queues_end(gpu);
    return when_ns;
}

void timeline_wait(gpu_t *gpu, uint64_t mark) {
    while (!timeline_reached(gpu, mark)) {
        image_line_t *line = begin(gpu);
        uint64_t until_ns = look_again_ns(gpu, line, mark);
        slots_queues_end(gpu);
        sleep_from_now(until_ns);
    }
}
