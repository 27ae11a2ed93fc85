/* Initialization, and the creation and end of contexts. Memory that ends with its context is refunded. */
#include <pthread.h>

#include "base/fork.h"
#include "base/table.h"
#include "compute/launch.h"
#include "compute/marker.h"
#include "cuda/capture.h"
#include "driver/driver.h"
#include "memory/charge.h"
#include "memory/cost.h"
#include "session/join.h"
#include "session/mps.h"

#define MAX_DEVICES 64

/* The last known primary contexts, to find the allocations that a reset ends. */
static CUcontext primary[MAX_DEVICES];

/* How often each context was attached: it survives that many detaches. */
static table_t attached = TABLE_INITIALIZER;

/* Held while a primary context is created or ended, so that only one thread creates and charges it, and no thread
 * restores what another has suspended. */
static pthread_mutex_t primary_mutexes[MAX_DEVICES] = {[0 ... MAX_DEVICES - 1] = PTHREAD_MUTEX_INITIALIZER};

static bool is_tracked(CUdevice device) {
    return device >= 0 && device < MAX_DEVICES;
}

static void lock_primary(CUdevice device) {
    if (is_tracked(device))
        pthread_mutex_lock(&primary_mutexes[device]);
}

static void unlock_primary(CUdevice device) {
    if (is_tracked(device))
        pthread_mutex_unlock(&primary_mutexes[device]);
}

static void context_after_fork(void) {
    for (unsigned i = 0; i < MAX_DEVICES; i++) {
        primary_mutexes[i] = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
        primary[i] = NULL;
    }
    table_clear(&attached);
}
FORK_ON_CHILD(context_after_fork)

/* atexit is in a static part of libc that needs start files. */
extern int __cxa_atexit(void (*function)(void *), void *argument, void *library);

static void stop_markers(void *unused) {
    (void)unused;
    marker_stop();
}

/* At exit the helper thread stops calling the driver before the driver shuts down. Exit handlers run in reverse order
 * of registration, so ours is registered after the driver's. */
static void watch_exit(void) {
    static bool watching; /* kept in the child, which inherits the handler */
    if (!__atomic_exchange_n(&watching, true, __ATOMIC_SEQ_CST))
        (void)__cxa_atexit(stop_markers, NULL, NULL);
}

CUresult cuInit(unsigned flags) {
    if (!session_join() || !mps_prepare())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    __typeof__(cuInit) *real = REAL(cuInit);
    CUresult result = real(flags);
    if (result != CUDA_SUCCESS)
        return result;
    driver_pin(HOOK_cuInit, (void *)real);
    watch_exit();
    return mps_check();
}

/* The context's device may have work from now on, so its gate counts. */
static CUresult begun(CUresult result, const CUcontext *context, CUdevice device) {
    if (result == CUDA_SUCCESS && session_join())
        launch_add_context(*context, device);
    return result;
}

static bool is_active(CUdevice device) {
    unsigned flags;
    int active;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active;
}

static CUresult charge_context(cost_t *cost, CUdevice device) {
    *cost = COST_NONE;
    return session_join() ? cost_begin(cost, device) : CUDA_ERROR_SYSTEM_NOT_READY;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    cost_t cost = COST_NONE;
    lock_primary(device);
    CUresult result = is_active(device) ? CUDA_SUCCESS : charge_context(&cost, device);
    if (result == CUDA_SUCCESS)
        result = cost_end(&cost, REAL(cuDevicePrimaryCtxRetain)(context, device), context);
    if (result == CUDA_SUCCESS && is_tracked(device))
        __atomic_store_n(&primary[device], *context, __ATOMIC_RELEASE);
    unlock_primary(device);
    return begun(result, context, device);
}

/* Contexts that the program creates are charged first. */
#define CREATE(symbol, parameters, ...)                                                                                \
    CUresult symbol parameters {                                                                                       \
        cost_t cost;                                                                                                   \
        CUresult result = charge_context(&cost, device);                                                               \
        if (result == CUDA_SUCCESS)                                                                                    \
            result = cost_end(&cost, REAL(symbol)(__VA_ARGS__), context);                                              \
        return begun(result, context, device);                                                                         \
    }
#define CREATE_PLAIN(symbol)                                                                                           \
    CREATE(symbol, (CUcontext * context, unsigned flags, CUdevice device), context, flags, device)
#define CREATE_VDPAU(symbol)                                                                                           \
    CREATE(symbol, (CUcontext * context, unsigned flags, CUdevice device, uint32_t vdpau, void *get_address), context, \
           flags, device, vdpau, get_address)
CREATE(cuCtxCreate_v4, (CUcontext * context, void *parameters, unsigned flags, CUdevice device), context, parameters,
       flags, device)
CREATE(cuCtxCreate_v3, (CUcontext * context, void *affinity, int count, unsigned flags, CUdevice device), context,
       affinity, count, flags, device)
CREATE_PLAIN(cuCtxCreate_v2)
CREATE_PLAIN(cuCtxCreate)
CREATE_PLAIN(cuGLCtxCreate_v2)
CREATE_PLAIN(cuGLCtxCreate)
CREATE_VDPAU(cuVDPAUCtxCreate_v2)
CREATE_VDPAU(cuVDPAUCtxCreate)

/* A green context implicitly holds the device's primary context. */
CUresult cuGreenCtxCreate(CUgreenCtx *context, void *resources, CUdevice device, unsigned flags) {
    if (!session_join())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    CUresult result = REAL(cuGreenCtxCreate)(context, resources, device, flags);
    if (result == CUDA_SUCCESS)
        launch_add_device(device);
    return result;
}

/* Around a call that may end the context: suspend its state, then drop or restore it. */
static uint64_t suspend(CUcontext context) {
    marker_suspend(context);
    return charge_detach(context);
}

static void end_suspension(uint64_t token, CUcontext context, bool ended) {
    if (ended) {
        marker_drop(context);
        charge_drop(token);
        capture_drop(context);
    } else {
        charge_reattach(token, context);
        marker_resume(context);
    }
}

static CUcontext primary_of(CUdevice device) {
    return is_tracked(device) ? __atomic_load_n(&primary[device], __ATOMIC_ACQUIRE) : NULL;
}

/* Only the last release ends the context, so the driver is asked whether it still exists. */
#define END_PRIMARY(symbol)                                                                                            \
    CUresult symbol(CUdevice device) {                                                                                 \
        lock_primary(device);                                                                                          \
        CUcontext context = primary_of(device);                                                                        \
        uint64_t token = suspend(context);                                                                             \
        CUresult result = REAL(symbol)(device);                                                                        \
        end_suspension(token, context, result == CUDA_SUCCESS && !is_active(device));                                  \
        unlock_primary(device);                                                                                        \
        return result;                                                                                                 \
    }
END_PRIMARY(cuDevicePrimaryCtxRelease_v2)
END_PRIMARY(cuDevicePrimaryCtxRelease)
END_PRIMARY(cuDevicePrimaryCtxReset_v2)
END_PRIMARY(cuDevicePrimaryCtxReset)

#define DESTROY(symbol)                                                                                                \
    CUresult symbol(CUcontext context) {                                                                               \
        uint64_t token = suspend(context);                                                                             \
        CUresult result = REAL(symbol)(context);                                                                       \
        end_suspension(token, context, result == CUDA_SUCCESS);                                                        \
        return result;                                                                                                 \
    }
DESTROY(cuCtxDestroy_v2)
DESTROY(cuCtxDestroy)

CUresult cuCtxAttach(CUcontext *context, unsigned flags) {
    CUresult result = REAL(cuCtxAttach)(context, flags);
    entry_t entry, old;
    if (result == CUDA_SUCCESS) {
        uint64_t key = (uint64_t)(uintptr_t)*context;
        unsigned count = table_get(&attached, key, &entry) ? entry.count : 0;
        entry = (entry_t){.key = key, .count = count + 1};
        (void)table_put(&attached, &entry, &old);
    }
    return result;
}

CUresult cuCtxDetach(CUcontext context) {
    entry_t entry, old;
    bool more = table_remove(&attached, (uint64_t)(uintptr_t)context, &entry);
    uint64_t token = suspend(context);
    CUresult result = REAL(cuCtxDetach)(context);
    if (more && (result != CUDA_SUCCESS || --entry.count > 0))
        (void)table_put(&attached, &entry, &old);
    end_suspension(token, context, result == CUDA_SUCCESS && !more);
    return result;
}

/* Its own context ends with it. Allocations made there belong to the primary context, which also ends if this was
 * its last holder. */
CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    CUcontext context = NULL, popped;
    CUdevice device = -1;
    if (REAL(cuCtxFromGreenCtx)(&context, green) != CUDA_SUCCESS)
        context = NULL;
    if (context != NULL && REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
        if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
            device = -1;
        (void)REAL(cuCtxPopCurrent_v2)(&popped);
    }
    lock_primary(device);
    CUcontext primary_context = primary_of(device);
    uint64_t token = suspend(primary_context);
    if (context != primary_context)
        marker_suspend(context);
    CUresult result = REAL(cuGreenCtxDestroy)(green);
    if (context != primary_context && result == CUDA_SUCCESS)
        marker_drop(context);
    else if (context != primary_context)
        marker_resume(context);
    end_suspension(token, primary_context, result == CUDA_SUCCESS && primary_context != NULL && !is_active(device));
    unlock_primary(device);
    return result;
}
