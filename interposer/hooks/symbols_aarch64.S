/* Transparent replacements of dlsym and dlopen: see symbols_x86_64.S. */
    .text

/* void *dlsym(void *handle, const char *symbol) */
    .globl replaced_dlsym
    .globl replaced_dlsym_old
    .type replaced_dlsym, %function
    .type replaced_dlsym_old, %function
    .symver replaced_dlsym, dlsym@@GLIBC_2.34
    .symver replaced_dlsym_old, dlsym@GLIBC_2.17
    .balign 16
replaced_dlsym:
replaced_dlsym_old:
    .cfi_startproc
    hint #34                    /* bti c */
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    stp x0, x1, [sp, #16]
    add x2, sp, #32
    bl symbols_answer           /* bool symbols_answer(handle, symbol, void **answer) */
    mov w4, w0
    ldr x3, [sp, #32]
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #48
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    tst w4, #0xff
    b.eq 1f
    mov x0, x3
    ret
1:  adrp x16, driver_next_dlsym
    ldr x16, [x16, #:lo12:driver_next_dlsym]
    br x16
    .cfi_endproc
    .size replaced_dlsym, . - replaced_dlsym
    .size replaced_dlsym_old, . - replaced_dlsym_old

/* void *dlopen(const char *file, int mode) */
    .globl replaced_dlopen
    .globl replaced_dlopen_old
    .type replaced_dlopen, %function
    .type replaced_dlopen_old, %function
    .symver replaced_dlopen, dlopen@@GLIBC_2.34
    .symver replaced_dlopen_old, dlopen@GLIBC_2.17
    .balign 16
replaced_dlopen:
replaced_dlopen_old:
    .cfi_startproc
    hint #34
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    stp x0, x1, [sp, #16]
    add x1, sp, #24
    add x2, sp, #32
    adrp x3, replaced
    add x3, x3, #:lo12:replaced
    bl symbols_open             /* bool symbols_open(file, int *mode, void **answer, replaced) */
    mov w4, w0
    ldr x3, [sp, #32]
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #48
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    tst w4, #0xff
    b.eq 1f
    mov x0, x3
    ret
1:  adrp x16, driver_next_dlopen
    ldr x16, [x16, #:lo12:driver_next_dlopen]
    br x16
    .cfi_endproc
    .size replaced_dlopen, . - replaced_dlopen
    .size replaced_dlopen_old, . - replaced_dlopen_old

    .section .data.rel.ro, "aw", %progbits
    .balign 8
replaced:
    .quad replaced_dlsym, replaced_dlopen

    .section .note.GNU-stack, "", %progbits
