#include "session/join.h"

#include <pthread.h>
#include <string.h>

#include "base/fork.h"
#include "base/report.h"
#include "link/arbiter.h"
#include "link/wire.h"
#include "session/helper.h"
#include "share/share.h"

static struct {
    pthread_mutex_t mutex; /* for joining */
    bool joined;
    bool reported;
    bool refused; /* until a fork */
} session = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void session_after_fork(void) {
    memset(&session, 0, sizeof session);
    session.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
FORK_ON_CHILD(session_after_fork)

static bool welcomed(char *sentence, size_t size) {
    wire_welcome_result_t welcome;
    if (!fork_watch()) {
        (void)strcpy(sentence, "no memory to watch for forks: raise the container's memory limit");
        return false;
    }
    if (!wire_join(&welcome, sentence, (unsigned)size))
        return false;
    arbiter_begin(welcome.socket, welcome.isolation.isolation);
    if (share_map(&welcome))
        return true;
    (void)strcpy(sentence, "the arbiter's pages cannot be mapped: raise the container's limit on address space");
    return false;
}

/* Without the helper thread every launch would wait forever. */
static bool join(void) {
    char sentence[512];
    if (welcomed(sentence, sizeof sentence) && helper_start(sentence, sizeof sentence))
        return true;
    share_unmap();
    arbiter_end();
    if (!session.reported)
        report("%s", sentence);
    session.reported = true;
    return false;
}

/* A thread cancelled while joining would leave the mutex locked. */
bool session_join(void) {
    int state = PTHREAD_CANCEL_ENABLE; /* old versions of glibc do not set it in a program without threads */
    if (__atomic_load_n(&session.joined, __ATOMIC_ACQUIRE))
        return true;
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_mutex_lock(&session.mutex);
    if (!session.joined && !session.refused && join())
        __atomic_store_n(&session.joined, true, __ATOMIC_RELEASE);
    bool joined = session.joined;
    pthread_mutex_unlock(&session.mutex);
    (void)pthread_setcancelstate(state, NULL);
    return joined;
}

void session_refuse(void) {
    pthread_mutex_lock(&session.mutex);
    session.refused = true;
    __atomic_store_n(&session.joined, false, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&session.mutex);
}
