/* Where a launching function has its stream: for the table, the assembly, and what the assembly calls. */
#ifndef GPUSHARE_REGISTERS_H
#define GPUSHARE_REGISTERS_H

#define LAUNCH_DEFAULT 0 /* it has none: the default stream */
#define LAUNCH_CONFIG 1  /* in the structure that its first parameter points to */
#define LAUNCH_STREAM_2 2
#define LAUNCH_STREAM_4 4
#define LAUNCH_SEVERAL 5 /* several devices at once */
#define LAUNCH_STREAM_9 9
#define LAUNCH_PER_THREAD 16 /* its default stream is the thread's own */

/* How many parameters come in registers. */
#if defined(__aarch64__)
#    define LAUNCH_REGISTERS 8
#else
#    define LAUNCH_REGISTERS 6
#endif

#endif
