/* Where a launching function has its stream, for the table, the assembly and hook_launch. */
#ifndef GPUSHARE_REGISTERS_H
#define GPUSHARE_REGISTERS_H

#define LAUNCH_DEFAULT 0 /* no parameter: the default stream */
#define LAUNCH_CONFIG 1  /* in the structure at the first parameter */
#define LAUNCH_STREAM_2 2
#define LAUNCH_STREAM_4 4
#define LAUNCH_SEVERAL 5 /* several devices at once */
#define LAUNCH_STREAM_9 9
#define LAUNCH_PER_THREAD 16 /* the default stream is the thread's */

/* The number of parameters in registers. */
#if defined(__aarch64__)
#    define LAUNCH_REGISTERS 8
#else
#    define LAUNCH_REGISTERS 6
#endif

#endif
