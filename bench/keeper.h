/* A process group that doesn't outlive this process, however that ends: by Ctrl-C, by a signal, or by a fault. */
#ifndef BENCH_KEEPER_H
#define BENCH_KEEPER_H

#include <sys/types.h>

typedef struct bench_keeper {
    pid_t group; /* processes that join it end with this one; 0: none */
    int pipe;
} bench_keeper;

/* Returns 0, or an errno. */
int bench_keeper_start(bench_keeper *self);
/* Ends the whole group at once. Who joined it is still to be waited for by who started it. */
void bench_keeper_end(bench_keeper *self);

#endif
