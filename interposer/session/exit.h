/* The end of the process: the helper thread asks the driver nothing any more while that is taken down. */
#ifndef GPUSHARE_EXIT_H
#define GPUSHARE_EXIT_H

/* Once the driver has begun; as often as one likes. */
void exit_watch(void);

#endif
