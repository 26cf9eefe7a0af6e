/* Turns: what is to be compared (degrees of a sweep, say) lives at the same time and works one after the other, sample
 * by sample, so that a slow moment of the machine falls on all of it. Each party runs its ranks in a thread of its own;
 * who has no turn sleeps. */
#ifndef BENCH_TURNS_H
#define BENCH_TURNS_H

#include <pthread.h>
#include <stdbool.h>

#define BENCH_PARTIES 64

typedef struct bench_turns {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int parties, current;
    bool gone[BENCH_PARTIES];
} bench_turns;

void bench_turns_init(bench_turns *turns, int parties);
void bench_turns_free(bench_turns *turns);

/* Waits for the party's turn. Any thread of the party may call it, also twice. NULL turns: returns at once. */
void bench_turns_take(bench_turns *turns, int party);

/* Gives the turn to the next party that is still there; called by one thread of the party that has it. */
void bench_turns_pass(bench_turns *turns, int party);

/* The party takes no more turns. */
void bench_turns_leave(bench_turns *turns, int party);

/* Runs fn(arg, party) for all parties, each in its own thread, and leaves for those that return. False if a thread
 * can't be started. */
bool bench_turns_run(bench_turns *turns, void (*fn)(void *arg, int party), void *arg);

#endif
