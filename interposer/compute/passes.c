#include "compute/passes.h"

#include "base/fork.h"

_Atomic uint64_t passes_generation __attribute__((aligned(64))) = 1;

_Thread_local __attribute__((tls_model("initial-exec"))) pass_t passes_own;

void passes_revoke(void) {
    (void)atomic_fetch_add(&passes_generation, 1);
}
FORK_ON_CHILD(passes_revoke)

unsigned passes_remaining(uint64_t generation, uint32_t gpu) {
    return passes_own.generation == generation && passes_own.gpu == gpu ? passes_own.remaining : 0;
}

void passes_grant(const pass_t *pass) {
    passes_own = *pass;
}
