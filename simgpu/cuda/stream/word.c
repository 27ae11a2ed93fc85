/* Stream memory operations: streams that wait for a value in memory, or write one. */
#include <stdlib.h>

#include "cuda/stream/action.h"
#include "cuda/stream/stream.h"

#define GREATER_OR_EQUAL 0u /* modulo 2^n */
#define EQUAL 1u
#define AND 2u
#define NOR 3u
#define FLUSH (1u << 30)
#define WAIT_32 1
#define WRITE_32 2
#define FLUSH_REMOTE_WRITES 3
#define WAIT_64 4
#define WRITE_64 5
#define BARRIER 6

typedef struct {
    CUdeviceptr address;
    uint64_t value;
    unsigned bits;
    unsigned condition;
} word_t;

static uint64_t read_word(const word_t *word) {
    return word->bits == 32 ? __atomic_load_n((uint32_t *)(uintptr_t)word->address, __ATOMIC_SEQ_CST)
                            : __atomic_load_n((uint64_t *)(uintptr_t)word->address, __ATOMIC_SEQ_CST);
}

static bool condition_holds(void *what) {
    const word_t *word = what;
    uint64_t now = read_word(word);
    switch (word->condition) {
    case EQUAL:
        return now == word->value;
    case AND:
        return (now & word->value) != 0;
    case NOR:
        return ~(now | word->value) << (64 - word->bits) != 0;
    default:
        return word->bits == 32 ? (int32_t)(now - word->value) >= 0 : (int64_t)(now - word->value) >= 0;
    }
}

static bool write_word(void *what) {
    const word_t *word = what;
    if (word->bits == 32)
        __atomic_store_n((uint32_t *)(uintptr_t)word->address, (uint32_t)word->value, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n((uint64_t *)(uintptr_t)word->address, word->value, __ATOMIC_SEQ_CST);
    return true;
}

static CUresult queue(const word_t *word, CUstream stream, stream_action_t act) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (word->address == 0 || word->address % (word->bits / 8) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream_is_capturing(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    word_t *argument = malloc(sizeof *argument);
    if (argument == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *argument = *word;
    return stream_enqueue(context, stream, false, ACTOR_GPU, act, argument);
}

static CUresult wait(CUdeviceptr address, uint64_t value, unsigned bits, unsigned flags, CUstream stream) {
    if ((flags & ~FLUSH) > NOR)
        return CUDA_ERROR_INVALID_VALUE;
    return queue(&(word_t){address, value, bits, flags & ~FLUSH}, stream, condition_holds);
}

static CUresult write(CUdeviceptr address, uint64_t value, unsigned bits, CUstream stream) {
    return queue(&(word_t){address, value, bits, 0}, stream, write_word);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return wait(address, value, 32, flags, stream);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    return wait(address, value, 64, flags, stream);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return flags <= 1 ? write(address, value, 32, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    return flags <= 1 ? write(address, value, 64, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return cuStreamWaitValue32_v2(stream, address, value, flags);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    return cuStreamWaitValue64_v2(stream, address, value, flags);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return cuStreamWriteValue32_v2(stream, address, value, flags);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    return cuStreamWriteValue64_v2(stream, address, value, flags);
}

static CUresult run_operation(CUstream stream, const CUstreamBatchMemOpParams *one) {
    switch (one->operation) {
    case WAIT_32:
        return wait(one->word.address, (uint32_t)one->word.value, 32, one->word.flags, stream);
    case WAIT_64:
        return wait(one->word.address, one->word.value, 64, one->word.flags, stream);
    case WRITE_32:
        return write(one->word.address, (uint32_t)one->word.value, 32, stream);
    case WRITE_64:
        return write(one->word.address, one->word.value, 64, stream);
    case FLUSH_REMOTE_WRITES:
    case BARRIER:
        return CUDA_SUCCESS; /* all memory is host memory */
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags) {
    CUresult result = count > 0 && operations != NULL && flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = run_operation(stream, &operations[i]);
    return result;
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags) {
    return cuStreamBatchMemOp_v2(stream, count, operations, flags);
}
