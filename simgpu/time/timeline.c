#include "time/timeline.h"

#include "image/clock.h"
#include "state/locks.h"
#include "time/schedule.h"

#define CHECK_NS 1000000ull /* how often processes with queued work are checked for life */
#define POLL_NS 250000ull   /* how often to poll when the time cannot be predicted */
#define MIN_SLEEP_NS 1000u
#define CLIENT_POLL_NS 5000000ull /* an MPS client may be ended from outside at any time */

static image_queue_t *own_queue(const gpu_t *gpu) {
    return image_queue(gpu->image, (unsigned)gpu->slot);
}

/* A control daemon, which has no slot, ends the clients of its own server in another way. */
static void end_clients_of_dead_servers(gpu_t *gpu) {
    for (unsigned i = 0; gpu->slot >= 0 && i < gpu->image->slots_high; i++) {
        const image_slot_t *slot = &gpu->image->slots[i];
        if (slot->mps == 0 || slot->ended != 0 || servers_find(gpu, slot->server) == slot->mps)
            continue;
        servers_end_client(gpu->image, i, ENDED_WITH_SERVER);
        channels_clear(image_queue(gpu->image, i));
    }
}

static void clear_dead_queues(gpu_t *gpu, image_schedule_t *schedule, uint64_t now_ns) {
    if (now_ns < schedule->checked_ns + CHECK_NS)
        return;
    schedule->checked_ns = now_ns;
    for (unsigned i = 0; i < gpu->image->slots_high; i++) {
        image_queue_t *queue = image_queue(gpu->image, i);
        if (queue->instance != gpu->instance || (int)i == gpu->slot || !channels_have_work(queue) ||
            slot_is_alive(gpu, i, queue->pid, queue->start_ticks))
            continue;
        if (queue->mps != 0 && servers_wedge(gpu->image))
            gpu->image->servers[queue->mps - 1].wedged = 1;
        channels_clear(queue);
    }
    end_clients_of_dead_servers(gpu);
}

/* A client may be ended while it queues work. */
static void drop_if_ended(gpu_t *gpu) {
    if (gpu->slot >= 0 && gpu->image->slots[gpu->slot].ended != 0)
        channels_clear(own_queue(gpu));
}

static image_schedule_t *lock_and_advance(gpu_t *gpu) {
    gpu_lock_queues(gpu);
    image_schedule_t *schedule = gpu_schedule(gpu);
    uint64_t now_ns = clock_now_ns();
    schedule_advance(gpu->image, gpu->instance, schedule, now_ns);
    clear_dead_queues(gpu, schedule, now_ns);
    drop_if_ended(gpu);
    return schedule;
}

static void advance(gpu_t *gpu) {
    (void)lock_and_advance(gpu);
    gpu_unlock_queues(gpu);
}

/* Clear what an earlier process with this slot has left in the queue. */
static void claim_queue(gpu_t *gpu) {
    image_queue_t *queue = own_queue(gpu);
    const image_slot_t *slot = &gpu->image->slots[gpu->slot];
    if (queue->pid == slot->pid && queue->start_ticks == slot->start_ticks)
        return;
    channels_clear(queue);
    queue->pid = slot->pid;
    queue->start_ticks = slot->start_ticks;
    queue->instance = gpu->instance;
    queue->mps = gpu->mps;
    queue->partition = gpu->partition;
    queue->percent = gpu->percent;
    for (unsigned i = 0; i < IMAGE_BUCKETS; i++)
        queue->busy_buckets[i] = 0;
}

static uint64_t next_poll_ns(gpu_t *gpu, image_schedule_t *schedule, uint64_t mark) {
    uint64_t poll_ns = clock_now_ns() + POLL_NS;
    uint64_t when_ns = schedule_next_poll_ns(gpu->image, gpu->instance, schedule, (unsigned)gpu->slot, mark);
    if (when_ns == UINT64_MAX)
        return poll_ns;
    uint64_t client_ns = clock_now_ns() + CLIENT_POLL_NS;
    return gpu->mps != 0 && client_ns < when_ns ? client_ns : when_ns;
}

static void sleep_from_now(uint64_t until_ns) {
    uint64_t soonest_ns = clock_now_ns() + MIN_SLEEP_NS;
    clock_sleep_until(until_ns > soonest_ns ? until_ns : soonest_ns);
}

uint64_t timeline_queue(gpu_t *gpu, _Atomic uint64_t *stream, const gpu_work_t *work) {
    image_schedule_t *schedule = lock_and_advance(gpu);
    claim_queue(gpu);
    image_queue_t *queue = own_queue(gpu);
    image_launch_t *launch;
    while ((launch = channel_reserve(queue, *stream, work->context, work->order)) == NULL) {
        uint64_t until_ns = next_poll_ns(gpu, schedule, 0);
        gpu_unlock_queues(gpu);
        sleep_from_now(until_ns);
        schedule = lock_and_advance(gpu);
    }
    launch->remaining_ns = work->duration_ns;
    launch->percent = (uint8_t)work->percent;
    atomic_store_explicit(&launch->held, work->held, memory_order_relaxed);
    launch->faults = work->faults;
    launch->after = work->after;
    uint64_t mark = channel_push(queue, launch);
    atomic_store_explicit(stream, mark, memory_order_release);
    drop_if_ended(gpu);
    gpu_unlock_queues(gpu);
    return mark;
}

bool timeline_reached(gpu_t *gpu, uint64_t mark) {
    if (mark == 0 || mark_reached(own_queue(gpu), mark))
        return true;
    advance(gpu);
    return mark_reached(own_queue(gpu), mark);
}

static image_launch_t *head_at(gpu_t *gpu, uint64_t mark) {
    image_queue_t *queue = own_queue(gpu);
    image_launch_t *head = channel_head(queue, &queue->channels[mark_index(mark)]);
    return head != NULL && head->number == mark_number(mark) ? head : NULL;
}

bool timeline_has_begun(gpu_t *gpu, uint64_t mark, uint64_t *again_ns_p) {
    image_schedule_t *schedule = lock_and_advance(gpu);
    uint64_t before = mark_make(MARK_CHANNEL, mark_index(mark), mark_number(mark) - 1);
    uint64_t poll_ns = clock_now_ns() + POLL_NS;
    const image_launch_t *head = head_at(gpu, mark);
    bool begun = head != NULL ? head->begun != 0 : mark_reached(own_queue(gpu), mark); /* it may have been dropped */
    *again_ns_p = head == NULL ? next_poll_ns(gpu, schedule, before) : poll_ns;
    gpu_unlock_queues(gpu);
    return begun;
}

void timeline_release(gpu_t *gpu, uint64_t mark) {
    (void)lock_and_advance(gpu);
    image_launch_t *head = head_at(gpu, mark);
    if (head != NULL)
        head->held = 0;
    gpu_unlock_queues(gpu);
}

/* If the mark covers several channels, the time at which the last of them ended. */
uint64_t timeline_ended_ns(gpu_t *gpu, uint64_t mark) {
    gpu_lock_queues(gpu);
    const image_queue_t *queue = own_queue(gpu);
    uint64_t number = mark_number(mark), oldest = queue->number > IMAGE_ENDS ? queue->number - IMAGE_ENDS + 1 : 1;
    uint64_t when_ns = queue->ended_ns[(number > oldest ? number : oldest) % IMAGE_ENDS];
    for (uint64_t i = oldest; mark_scope(mark) != MARK_CHANNEL && i < number; i++) {
        uint64_t ended_ns = queue->ended_ns[i % IMAGE_ENDS];
        when_ns = ended_ns > when_ns ? ended_ns : when_ns;
    }
    gpu_unlock_queues(gpu);
    return when_ns;
}

void timeline_wait(gpu_t *gpu, uint64_t mark) {
    while (!timeline_reached(gpu, mark)) {
        image_schedule_t *schedule = lock_and_advance(gpu);
        uint64_t until_ns = next_poll_ns(gpu, schedule, mark);
        gpu_unlock_queues(gpu);
        sleep_from_now(until_ns);
    }
}

void timeline_drop(gpu_t *gpu) {
    gpu_lock_queues(gpu);
    channels_clear(own_queue(gpu));
    gpu_unlock_queues(gpu);
}

void timeline_end_client(gpu_t *gpu, unsigned slot, ended_t why) {
    (void)lock_and_advance(gpu);
    servers_end_client(gpu->image, slot, why);
    channels_clear(image_queue(gpu->image, slot));
    gpu_unlock_queues(gpu);
}

void timeline_sweep(gpu_t *gpu) {
    gpu_schedule(gpu)->checked_ns = 0;
    advance(gpu);
}
