/* The functions that start work on the GPU: one load, one compare, then a jump to the real function, with registers
 * and stack as the application left them. Anything else happens only if the gate is not wide open. C code would have
 * to push the arguments on the stack again. */
#include "hooks/registers.h"

/* CUresult hook_launch(const uint64_t registers[6], const uint64_t *stack, unsigned stream) */
    .macro launch symbol, stream
    .globl \symbol
    .type \symbol, @function
    .balign 32
\symbol:
    .cfi_startproc
    endbr64
    cmpl $1, gate_word(%rip)
    jne 1f
    jmp *real_\symbol(%rip)
1:  pushq %r9
    .cfi_adjust_cfa_offset 8
    pushq %r8
    .cfi_adjust_cfa_offset 8
    pushq %rcx
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp               /* aligns the stack to 16 bytes */
    .cfi_adjust_cfa_offset 8
    leaq 8(%rsp), %rdi
    leaq 64(%rsp), %rsi         /* past the six registers and the return address */
    movl $(\stream), %edx
    call hook_launch
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rcx
    .cfi_adjust_cfa_offset -8
    popq %r8
    .cfi_adjust_cfa_offset -8
    popq %r9
    .cfi_adjust_cfa_offset -8
    testl %eax, %eax
    jnz 2f
    jmp *real_\symbol(%rip)
2:  ret
    .cfi_endproc
    .size \symbol, . - \symbol

    .pushsection .bss
    .globl real_\symbol
    .hidden real_\symbol
    .balign 8
real_\symbol:
    .skip 8
    .popsection
    .endm

    .text
#define HOOK(library, symbol, returns, parameters)
#define REFUSE(symbol, what)
#define NEED(library, symbol, returns, parameters)
#define LAUNCH(library, symbol, stream) launch symbol, (stream)
#include "driver/hooks.def"

    .section .note.GNU-stack, "", @progbits
