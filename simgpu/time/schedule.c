#include "time/schedule.h"

#include <stdatomic.h>

#include "state/servers.h"
#include "time/channels.h"
#include "time/usage.h"

#define NO_QUEUE IMAGE_SLOTS
#define WHOLE 100u
#define MAX_RUNNERS 256u

/* The queues with work, and which of them could use the GPU now. */
typedef struct {
    unsigned indices[IMAGE_SLOTS];
    bool wants[IMAGE_SLOTS];
    unsigned count;
} queues_t;

/* A kernel, and the share of the GPU that it gets. */
typedef struct {
    image_queue_t *queue;
    image_channel_t *channel;
    image_launch_t *launch;
    unsigned percent;
} runner_t;

typedef struct {
    runner_t all[MAX_RUNNERS];
    unsigned count;
} runners_t;

static uint64_t min(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

/* Let streams pass entries that need no part of the GPU. Returns whether a stream has reached one that does. */
static bool advance_streams(image_queue_t *queue, uint64_t at_ns) {
    bool wants, again;
    do {
        wants = again = false;
        for (unsigned i = 0; i < queue->channels_high; i++) {
            image_channel_t *channel = &queue->channels[i];
            image_launch_t *head = channel_head(queue, channel);
            if (head == NULL || !channel_is_ready(queue, head))
                continue;
            if (head->ready_ns == 0)
                head->ready_ns = at_ns;
            if (head->percent > 0) {
                wants = true;
                continue;
            }
            atomic_store_explicit(&head->begun, 1, memory_order_relaxed);
            if (!head->held) {
                channel_pop(queue, channel, head, at_ns);
                again = true;
            }
        }
    } while (again);
    return wants;
}

static void find_queues(image_t *image, uint64_t instance, queues_t *queues) {
    unsigned high = image->slots_high;
    queues->count = 0;
    for (unsigned i = 0; i < high; i++) {
        image_queue_t *queue = image_queue(image, i);
        if (queue->instance == instance && channels_have_work(queue))
            queues->indices[queues->count++] = i;
    }
}

static bool share_slices(const image_t *image, unsigned one, unsigned other) {
    uint32_t server = image_queue(image, one)->mps;
    return one == other || (server != 0 && server == image_queue(image, other)->mps);
}

static bool is_wedged(const image_t *image, const image_queue_t *queue) {
    return queue->mps != 0 && image->servers[queue->mps - 1].wedged;
}

/* End all clients of the server, or, if the driver contains faults, those in the same static SM partition. */
static void end_clients(image_t *image, uint32_t server, uint32_t partition) {
    bool contained = partition != 0 && servers_contain_faults(image);
    for (unsigned i = 0; i < image->slots_high; i++) {
        const image_slot_t *slot = &image->slots[i];
        if (slot->mps != server || (contained && slot->partition != partition))
            continue;
        servers_end_client(image, i, ENDED_BY_FAULT);
        if (image_queue(image, i)->pid == slot->pid && image_queue(image, i)->start_ticks == slot->start_ticks)
            channels_clear(image_queue(image, i));
    }
}

/* Find out whether the current process wants the GPU, and whether others do. */
static void find_wants(image_t *image, queues_t *queues, unsigned current, uint64_t at_ns, bool *wants_p,
                       bool *contended_p) {
    *wants_p = *contended_p = false;
    for (unsigned i = 0; i < queues->count; i++) {
        image_queue_t *queue = image_queue(image, queues->indices[i]);
        queues->wants[i] = !is_wedged(image, queue) && advance_streams(queue, at_ns);
        bool mine = share_slices(image, current, queues->indices[i]);
        *wants_p |= queues->wants[i] && mine;
        *contended_p |= queues->wants[i] && !mine;
    }
}

/* Return the next queue in round-robin order. The current one comes last. */
static unsigned next_queue(const image_t *image, const queues_t *queues, unsigned current) {
    unsigned first = NO_QUEUE, current_queue = NO_QUEUE;
    for (unsigned i = 0; i < queues->count; i++) {
        unsigned index = queues->indices[i];
        if (!queues->wants[i])
            continue;
        if (share_slices(image, current, index))
            current_queue = index;
        else if (index > current)
            return index;
        else if (first == NO_QUEUE)
            first = index;
    }
    return first != NO_QUEUE ? first : current_queue;
}

/* Sorted by when they became ready. */
static void add_runner(runners_t *runners, runner_t runner) {
    unsigned at = runners->count;
    if (at == MAX_RUNNERS)
        return;
    runners->count++;
    for (; at > 0 && runners->all[at - 1].launch->ready_ns > runner.launch->ready_ns; at--)
        runners->all[at] = runners->all[at - 1];
    runners->all[at] = runner;
}

static unsigned percent_before(const runners_t *runners, unsigned before, const image_queue_t *queue) {
    unsigned percent = 0;
    for (unsigned i = 0; i < before; i++)
        percent += runners->all[i].queue == queue ? runners->all[i].percent : 0;
    return percent;
}

static void assign_percents(image_t *image, const queues_t *queues, unsigned current, runners_t *runners) {
    runners->count = 0;
    for (unsigned i = 0; i < queues->count; i++) {
        image_queue_t *queue = image_queue(image, queues->indices[i]);
        if (!share_slices(image, current, queues->indices[i]) || is_wedged(image, queue))
            continue;
        for (unsigned c = 0; c < queue->channels_high; c++) {
            image_launch_t *head = channel_head(queue, &queue->channels[c]);
            if (head != NULL && head->percent > 0 && head->ready_ns != 0)
                add_runner(runners, (runner_t){queue, &queue->channels[c], head, 0});
        }
    }
    unsigned remaining = WHOLE;
    for (unsigned i = 0; i < runners->count; i++) {
        runner_t *runner = &runners->all[i];
        unsigned may = runner->queue->percent - percent_before(runners, i, runner->queue);
        runner->percent = (unsigned)min(min(runner->launch->percent, remaining), may);
        remaining -= runner->percent;
    }
}

/* How long it takes to finish with its present share. */
static uint64_t finish_ns(const runner_t *runner, uint64_t remaining_ns) {
    return (remaining_ns * runner->launch->percent + runner->percent - 1) / runner->percent;
}

/* Run the current kernels until now, the end of the time slice, or the end of the first of them. */
static void run_step(image_schedule_t *schedule, const runners_t *runners, bool contended, uint64_t now_ns,
                     image_t *image) {
    uint64_t at_ns = schedule->at_ns, step_ns = now_ns - at_ns;
    if (contended)
        step_ns = min(step_ns, schedule->slice_end_ns > at_ns ? schedule->slice_end_ns - at_ns : 0);
    for (unsigned i = 0; i < runners->count; i++) {
        const runner_t *runner = &runners->all[i];
        if (runner->percent > 0 && !runner->launch->held)
            step_ns = min(step_ns, finish_ns(runner, runner->launch->remaining_ns));
    }
    const image_queue_t *faulty = NULL;
    usage_add(image->busy_buckets, at_ns, at_ns + step_ns);
    for (unsigned i = 0; i < runners->count; i++) {
        const runner_t *runner = &runners->all[i];
        if (runner->percent == 0)
            continue;
        if (percent_before(runners, i, runner->queue) == 0)
            usage_add(runner->queue->busy_buckets, at_ns, at_ns + step_ns);
        atomic_store_explicit(&runner->launch->begun, 1, memory_order_relaxed);
        if (runner->launch->held)
            continue;
        uint64_t done_ns = step_ns * runner->percent / runner->launch->percent;
        runner->launch->remaining_ns -= min(done_ns, runner->launch->remaining_ns);
        if (runner->launch->remaining_ns != 0)
            continue;
        if (runner->launch->faults && runner->queue->mps != 0)
            faulty = runner->queue;
        channel_pop(runner->queue, runner->channel, runner->launch, at_ns + step_ns);
    }
    if (faulty != NULL)
        end_clients(image, faulty->mps, faulty->partition);
    schedule->at_ns += step_ns;
    /* A process that is alone continues from slice to slice. Another process may arrive in the middle of one. */
    if (!contended && schedule->at_ns >= schedule->slice_end_ns)
        schedule->slice_end_ns +=
            ((schedule->at_ns - schedule->slice_end_ns) / SCHEDULE_SLICE_NS + 1) * SCHEDULE_SLICE_NS;
    if (contended && schedule->at_ns >= schedule->slice_end_ns)
        schedule->running = 0;
}

void schedule_advance(image_t *image, uint64_t instance, image_schedule_t *schedule, uint64_t now_ns) {
    if (schedule->at_ns >= now_ns)
        return;
    queues_t queues;
    find_queues(image, instance, &queues);
    while (schedule->at_ns < now_ns) {
        bool wants, contended;
        find_wants(image, &queues, schedule->current, schedule->at_ns, &wants, &contended);
        if (schedule->running && wants) {
            runners_t runners;
            assign_percents(image, &queues, schedule->current, &runners);
            run_step(schedule, &runners, contended, now_ns, image);
            continue;
        }
        schedule->running = 0;
        unsigned next = next_queue(image, &queues, schedule->current);
        if (next == NO_QUEUE) {
            uint64_t at_ns = schedule->at_ns; /* never move time back, even if this process was stopped here */
            while (at_ns < now_ns && !atomic_compare_exchange_weak(&schedule->at_ns, &at_ns, now_ns))
                continue;
            return;
        }
        if (!share_slices(image, schedule->current, next))
            schedule->at_ns += image->context_switch_ns;
        schedule->current = next;
        schedule->slice_end_ns = schedule->at_ns + SCHEDULE_SLICE_NS;
        schedule->running = 1;
    }
}

/* Sum up a channel's work until a launch, or until one that waits for its release (held_p). */
static uint64_t remaining_ns(const image_queue_t *queue, const image_channel_t *channel, uint64_t number,
                             bool *held_p) {
    uint64_t remaining_ns = 0, queued = channel->queued;
    *held_p = false;
    for (uint64_t position = channel->done; position < queued; position++) {
        const image_launch_t *launch = &queue->launches[channel->launches[position % IMAGE_LAUNCHES]];
        if (launch->number > number)
            break;
        if (launch->held) {
            *held_p = true;
            break;
        }
        remaining_ns += launch->remaining_ns;
    }
    return remaining_ns;
}

/* The earliest time at which one of them ends, so that others get more or a stream moves on. */
static uint64_t next_change_ns(const runners_t *runners) {
    uint64_t soonest_ns = UINT64_MAX;
    for (unsigned i = 0; i < runners->count; i++) {
        const runner_t *runner = &runners->all[i];
        if (runner->percent > 0 && !runner->launch->held)
            soonest_ns = min(soonest_ns, finish_ns(runner, runner->launch->remaining_ns));
    }
    return soonest_ns;
}

/* When all queued work of these streams could be done. */
static uint64_t end_ns(const runners_t *runners) {
    uint64_t last_ns = 0;
    for (unsigned i = 0; i < runners->count; i++) {
        bool held;
        uint64_t ns = remaining_ns(runners->all[i].queue, runners->all[i].channel, UINT64_MAX, &held);
        last_ns = held ? UINT64_MAX : ns > last_ns ? ns : last_ns;
        if (held)
            break;
    }
    return last_ns;
}

static const runner_t *runner_in(const runners_t *runners, const image_channel_t *channel) {
    for (unsigned i = 0; i < runners->count; i++) {
        if (runners->all[i].channel == channel)
            return &runners->all[i];
    }
    return NULL;
}

static bool has_held(image_queue_t *queue) {
    for (unsigned i = 0; i < queue->channels_high; i++) {
        const image_launch_t *head = channel_head(queue, &queue->channels[i]);
        if (head != NULL && head->held)
            return true;
    }
    return false;
}

/* The time from now until the channel can reach the launch, if nothing else changes. */
static uint64_t wait_ns(image_queue_t *queue, image_channel_t *channel, uint64_t number, const runners_t *runners) {
    const runner_t *runner = runner_in(runners, channel);
    bool held;
    if (runner == NULL || runner->percent == 0)
        return has_held(queue) ? UINT64_MAX : next_change_ns(runners);
    uint64_t remaining = remaining_ns(queue, channel, number, &held);
    if (remaining == 0 && held)
        return UINT64_MAX;
    uint64_t ns = finish_ns(runner, remaining);
    return runner->percent < runner->launch->percent ? min(ns, next_change_ns(runners)) : ns;
}

uint64_t schedule_next_poll_ns(image_t *image, uint64_t instance, const image_schedule_t *schedule, unsigned index,
                               uint64_t mark) {
    queues_t queues;
    runners_t runners;
    bool wants, contended;
    image_queue_t *queue = image_queue(image, index);
    find_queues(image, instance, &queues);
    find_wants(image, &queues, schedule->current, schedule->at_ns, &wants, &contended);
    assign_percents(image, &queues, schedule->current, &runners);
    uint64_t slice_ns = schedule->slice_end_ns > schedule->at_ns ? schedule->slice_end_ns - schedule->at_ns : 0,
             latest_ns = 0;
    if (share_slices(image, schedule->current, index)) {
        if (mark == 0)
            latest_ns = next_change_ns(&runners);
        for (unsigned i = 0; mark != 0 && i < queue->channels_high; i++) {
            if (!mark_waits_for(queue, mark, i))
                continue;
            uint64_t ns = wait_ns(queue, &queue->channels[i], mark_number(mark), &runners);
            latest_ns = ns > latest_ns ? ns : latest_ns;
        }
        if (contended && latest_ns > slice_ns)
            latest_ns = slice_ns;
    } else {
        uint64_t turn_ns = min(slice_ns, end_ns(&runners));
        latest_ns = turn_ns == 0 && has_held(queue) ? UINT64_MAX : turn_ns + image->context_switch_ns;
    }
    return latest_ns == UINT64_MAX ? UINT64_MAX : schedule->at_ns + latest_ns;
}
