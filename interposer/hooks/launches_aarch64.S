/* The functions that start work on the GPU: one load, one compare, then the real function. See launches_x86_64.S. */
#include "hooks/registers.h"

/* CUresult hook_launch(const uint64_t registers[LAUNCH_REGISTERS], const uint64_t *stack, unsigned stream) */
    .macro launch symbol, stream
    .globl \symbol
    .type \symbol, %function
    .balign 32
\symbol:
    .cfi_startproc
    hint #34                    /* bti c */
    adrp x16, gate_word
    ldr w16, [x16, #:lo12:gate_word]
    cmp w16, #1
    b.ne 1f
    adrp x16, real_\symbol
    ldr x16, [x16, #:lo12:real_\symbol]
    br x16
1:  stp x29, x30, [sp, #-80]!
    .cfi_def_cfa_offset 80
    .cfi_offset 29, -80
    .cfi_offset 30, -72
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    add x0, sp, #16
    add x1, sp, #80             /* past the eight registers and the return address */
    mov w2, #(\stream)
    bl hook_launch
    mov w9, w0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldp x29, x30, [sp], #80
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    cbnz w9, 2f
    adrp x16, real_\symbol
    ldr x16, [x16, #:lo12:real_\symbol]
    br x16
2:  mov w0, w9
    ret
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

    .section .note.GNU-stack, "", %progbits
