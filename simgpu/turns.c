#include "turns.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "channels.h"
#include "usage.h"

#define NOBODY IMAGE_SLOTS
#define WHOLE 100u
#define MOST_RUNNERS 256u

/* The queues with work, and which of them want the GPU. */
typedef struct {
    unsigned indices[IMAGE_SLOTS];
    bool wants[IMAGE_SLOTS];
    unsigned count;
} queues_t;

/* A kernel and how much of the GPU it has. */
typedef struct {
    image_queue_t *queue;
    image_channel_t *channel;
    image_launch_t *launch;
    unsigned percent;
} runner_t;

typedef struct {
    runner_t all[MOST_RUNNERS];
    unsigned count;
} runners_t;

static uint64_t least(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

/* Streams go past what takes no part of the GPU. True: they have come to something that does. */
static bool settle(image_queue_t *queue, uint64_t at_ns) {
    bool wants, again;
    do {
        wants = again = false;
        for (unsigned i = 0; i < queue->channels_high; i++) {
            image_channel_t *channel = &queue->channels[i];
            image_launch_t *head = channel_head(queue, channel);
            if (head == NULL || !channel_is_ready(queue, head))
                continue;
            if (head->since_ns == 0)
                head->since_ns = at_ns;
            if (head->percent > 0) {
                wants = true;
                continue;
            }
            atomic_store_explicit(&head->begun, 1, memory_order_relaxed);
            if (!head->held) {
                channel_pass(queue, channel, head, at_ns);
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

static bool take_turns_together(const image_t *image, unsigned one, unsigned other) {
    return one == other || (image_queue(image, one)->mps && image_queue(image, other)->mps);
}

/* Whether the one whose turn it is wants the GPU, and whether anybody else does. */
static void look(image_t *image, queues_t *queues, unsigned current, uint64_t at_ns, bool *wants_p, bool *contended_p) {
    *wants_p = *contended_p = false;
    for (unsigned i = 0; i < queues->count; i++) {
        queues->wants[i] = settle(image_queue(image, queues->indices[i]), at_ns);
        bool mine = take_turns_together(image, current, queues->indices[i]);
        *wants_p |= queues->wants[i] && mine;
        *contended_p |= queues->wants[i] && !mine;
    }
}

/* Whose turn is next, around and around; whoever has it now comes last. */
static unsigned next_after(const image_t *image, const queues_t *queues, unsigned current) {
    unsigned first = NOBODY, own = NOBODY;
    for (unsigned i = 0; i < queues->count; i++) {
        unsigned index = queues->indices[i];
        if (!queues->wants[i])
            continue;
        if (take_turns_together(image, current, index))
            own = index;
        else if (index > current)
            return index;
        else if (first == NOBODY)
            first = index;
    }
    return first != NOBODY ? first : own;
}

/* Those who came first are first. */
static void add_runner(runners_t *runners, runner_t runner) {
    unsigned at = runners->count;
    if (at == MOST_RUNNERS)
        return;
    runners->count++;
    for (; at > 0 && runners->all[at - 1].launch->since_ns > runner.launch->since_ns; at--)
        runners->all[at] = runners->all[at - 1];
    runners->all[at] = runner;
}

static unsigned had_by(const runners_t *runners, unsigned before, const image_queue_t *queue) {
    unsigned percent = 0;
    for (unsigned i = 0; i < before; i++)
        percent += runners->all[i].queue == queue ? runners->all[i].percent : 0;
    return percent;
}

static void hand_out(image_t *image, const queues_t *queues, unsigned current, runners_t *runners) {
    runners->count = 0;
    for (unsigned i = 0; i < queues->count; i++) {
        image_queue_t *queue = image_queue(image, queues->indices[i]);
        if (!take_turns_together(image, current, queues->indices[i]))
            continue;
        for (unsigned c = 0; c < queue->channels_high; c++) {
            image_launch_t *head = channel_head(queue, &queue->channels[c]);
            if (head != NULL && head->percent > 0 && head->since_ns != 0)
                add_runner(runners, (runner_t){queue, &queue->channels[c], head, 0});
        }
    }
    unsigned left = WHOLE;
    for (unsigned i = 0; i < runners->count; i++) {
        runner_t *runner = &runners->all[i];
        unsigned may = runner->queue->percent - had_by(runners, i, runner->queue);
        runner->percent = (unsigned)least(least(runner->launch->percent, left), may);
        left -= runner->percent;
    }
}

/* How long it takes yet if it keeps what it has. */
static uint64_t rest_ns(const runner_t *runner, uint64_t left_ns) {
    return (left_ns * runner->launch->percent + runner->percent - 1) / runner->percent;
}

/* Those whose turn it is go on until now, the end of their slice, or of the first of them. */
static void go_on(image_line_t *line, const runners_t *runners, bool contended, uint64_t now_ns, image_t *image) {
    uint64_t at_ns = line->at_ns, step_ns = now_ns - at_ns;
    if (contended)
        step_ns = least(step_ns, line->slice_end_ns > at_ns ? line->slice_end_ns - at_ns : 0);
    for (unsigned i = 0; i < runners->count; i++) {
        const runner_t *runner = &runners->all[i];
        if (runner->percent > 0 && !runner->launch->held)
            step_ns = least(step_ns, rest_ns(runner, runner->launch->left_ns));
    }
    usage_add(image->busy_buckets, at_ns, at_ns + step_ns);
    for (unsigned i = 0; i < runners->count; i++) {
        const runner_t *runner = &runners->all[i];
        if (runner->percent == 0)
            continue;
        if (had_by(runners, i, runner->queue) == 0)
            usage_add(runner->queue->busy_buckets, at_ns, at_ns + step_ns);
        atomic_store_explicit(&runner->launch->begun, 1, memory_order_relaxed);
        if (runner->launch->held)
            continue;
        uint64_t done_ns = step_ns * runner->percent / runner->launch->percent;
        runner->launch->left_ns -= least(done_ns, runner->launch->left_ns);
        if (runner->launch->left_ns == 0)
            channel_pass(runner->queue, runner->channel, runner->launch, at_ns + step_ns);
    }
    line->at_ns += step_ns;
    /* Alone they go on from one slice to the next: who comes, comes in the middle of one. */
    if (!contended && line->at_ns >= line->slice_end_ns)
        line->slice_end_ns += ((line->at_ns - line->slice_end_ns) / TURNS_SLICE_NS + 1) * TURNS_SLICE_NS;
    if (contended && line->at_ns >= line->slice_end_ns)
        line->running = 0;
}

void turns_advance(image_t *image, uint64_t instance, image_line_t *line, uint64_t now_ns) {
    if (line->at_ns >= now_ns)
        return;
    queues_t queues;
    find_queues(image, instance, &queues);
    while (line->at_ns < now_ns) {
        bool wants, contended;
        look(image, &queues, line->current, line->at_ns, &wants, &contended);
        if (line->running && wants) {
            runners_t runners;
            hand_out(image, &queues, line->current, &runners);
            go_on(line, &runners, contended, now_ns, image);
            continue;
        }
        line->running = 0;
        unsigned next = next_after(image, &queues, line->current);
        if (next == NOBODY) {
            uint64_t at_ns = line->at_ns; /* never back, not even by one that was stopped here */
            while (at_ns < now_ns && !atomic_compare_exchange_weak(&line->at_ns, &at_ns, now_ns))
                continue;
            return;
        }
        if (!take_turns_together(image, line->current, next))
            line->at_ns += image->context_switch_ns;
        line->current = next;
        line->slice_end_ns = line->at_ns + TURNS_SLICE_NS;
        line->running = 1;
    }
}

/* What a channel has to do up to a launch, or to one that waits to be released; held_p: whether it is such a one. */
static uint64_t left_ns(const image_queue_t *queue, const image_channel_t *channel, uint64_t number, bool *held_p) {
    uint64_t left_ns = 0, given = channel->given;
    *held_p = false;
    for (uint64_t position = channel->done; position < given; position++) {
        const image_launch_t *launch = &queue->launches[channel->launches[position % IMAGE_LAUNCHES]];
        if (launch->number > number)
            break;
        if (launch->held) {
            *held_p = true;
            break;
        }
        left_ns += launch->left_ns;
    }
    return left_ns;
}

/* The soonest that one of them ends and others get more, or get their turn in a stream. */
static uint64_t change_ns(const runners_t *runners) {
    uint64_t soonest_ns = UINT64_MAX;
    for (unsigned i = 0; i < runners->count; i++) {
        const runner_t *runner = &runners->all[i];
        if (runner->percent > 0 && !runner->launch->held)
            soonest_ns = least(soonest_ns, rest_ns(runner, runner->launch->left_ns));
    }
    return soonest_ns;
}

/* When all that they have to do in a row can be done. */
static uint64_t end_ns(const runners_t *runners) {
    uint64_t last_ns = 0;
    for (unsigned i = 0; i < runners->count; i++) {
        bool held;
        uint64_t ns = left_ns(runners->all[i].queue, runners->all[i].channel, UINT64_MAX, &held);
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

static bool waits_for_release(image_queue_t *queue) {
    for (unsigned i = 0; i < queue->channels_high; i++) {
        const image_launch_t *head = channel_head(queue, &queue->channels[i]);
        if (head != NULL && head->held)
            return true;
    }
    return false;
}

/* From now, when one channel may have come to a launch, as things are. */
static uint64_t wait_ns(image_queue_t *queue, image_channel_t *channel, uint64_t number, const runners_t *runners) {
    const runner_t *runner = runner_in(runners, channel);
    bool held;
    if (runner == NULL || runner->percent == 0)
        return waits_for_release(queue) ? UINT64_MAX : change_ns(runners);
    uint64_t left = left_ns(queue, channel, number, &held);
    if (left == 0 && held)
        return UINT64_MAX;
    uint64_t ns = rest_ns(runner, left);
    return runner->percent < runner->launch->percent ? least(ns, change_ns(runners)) : ns;
}

uint64_t turns_look_again_ns(image_t *image, uint64_t instance, const image_line_t *line, unsigned index,
                             uint64_t mark) {
    queues_t queues;
    runners_t runners;
    bool wants, contended;
    image_queue_t *queue = image_queue(image, index);
    find_queues(image, instance, &queues);
    look(image, &queues, line->current, line->at_ns, &wants, &contended);
    hand_out(image, &queues, line->current, &runners);
    uint64_t slice_ns = line->slice_end_ns > line->at_ns ? line->slice_end_ns - line->at_ns : 0, latest_ns = 0;
    if (take_turns_together(image, line->current, index)) {
        if (mark == 0)
            latest_ns = change_ns(&runners);
        for (unsigned i = 0; mark != 0 && i < queue->channels_high; i++) {
            if (!mark_waits_for(queue, mark, i))
                continue;
            uint64_t ns = wait_ns(queue, &queue->channels[i], mark_number(mark), &runners);
            latest_ns = ns > latest_ns ? ns : latest_ns;
        }
        if (contended && latest_ns > slice_ns)
            latest_ns = slice_ns;
    } else {
        uint64_t turn_ns = least(slice_ns, end_ns(&runners));
        latest_ns = turn_ns == 0 && waits_for_release(queue) ? UINT64_MAX : turn_ns + image->context_switch_ns;
    }
    return latest_ns == UINT64_MAX ? UINT64_MAX : line->at_ns + latest_ns;
}
