/* Transparent replacements of dlsym and dlopen.
 *
 * glibc takes the caller from the return address, and RTLD_NEXT and RUNPATH depend on it. A replacement in C would
 * make this library the caller. So for calls that we do not answer, the code jumps to the next function, with the
 * stack as the application left it. */
    .text

/* void *dlsym(void *handle, const char *symbol) */
    .globl replaced_dlsym
    .globl replaced_dlsym_old
    .type replaced_dlsym, @function
    .type replaced_dlsym_old, @function
    .symver replaced_dlsym, dlsym@@GLIBC_2.34
    .symver replaced_dlsym_old, dlsym@GLIBC_2.2.5
    .balign 16
replaced_dlsym:
replaced_dlsym_old:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $24, %rsp              /* room for the answer, and aligns the stack to 16 bytes */
    .cfi_adjust_cfa_offset 24
    leaq 8(%rsp), %rdx
    call symbols_answer         /* bool symbols_answer(handle, symbol, void **answer) */
    movq 8(%rsp), %rdx
    addq $24, %rsp
    .cfi_adjust_cfa_offset -24
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testb %al, %al
    jz 1f
    movq %rdx, %rax
    ret
1:  jmp *driver_next_dlsym(%rip)
    .cfi_endproc
    .size replaced_dlsym, . - replaced_dlsym
    .size replaced_dlsym_old, . - replaced_dlsym_old

/* void *dlopen(const char *file, int mode) */
    .globl replaced_dlopen
    .globl replaced_dlopen_old
    .type replaced_dlopen, @function
    .type replaced_dlopen_old, @function
    .symver replaced_dlopen, dlopen@@GLIBC_2.34
    .symver replaced_dlopen_old, dlopen@GLIBC_2.2.5
    .balign 16
replaced_dlopen:
replaced_dlopen_old:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $24, %rsp              /* room for the answer, and aligns the stack to 16 bytes */
    .cfi_adjust_cfa_offset 24
    leaq 24(%rsp), %rsi
    leaq 8(%rsp), %rdx
    leaq replaced(%rip), %rcx
    call symbols_open           /* bool symbols_open(file, int *mode, void **answer, replaced) */
    movq 8(%rsp), %rdx
    addq $24, %rsp
    .cfi_adjust_cfa_offset -24
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testb %al, %al
    jz 1f
    movq %rdx, %rax
    ret
1:  jmp *driver_next_dlopen(%rip)
    .cfi_endproc
    .size replaced_dlopen, . - replaced_dlopen
    .size replaced_dlopen_old, . - replaced_dlopen_old

    .section .data.rel.ro, "aw", @progbits
    .balign 8
replaced:
    .quad replaced_dlsym, replaced_dlopen

    .section .note.GNU-stack, "", @progbits
