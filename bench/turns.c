#include "turns.h"

#include "measure.h"

void bench_turns_init(bench_turns *turns, int parties)
{
    *turns = (bench_turns){.parties = parties};
    pthread_mutex_init(&turns->lock, NULL);
    pthread_cond_init(&turns->changed, NULL);
}

void bench_turns_free(bench_turns *turns)
{
    pthread_cond_destroy(&turns->changed);
    pthread_mutex_destroy(&turns->lock);
}

void bench_turns_take(bench_turns *turns, int party)
{
    if (turns == NULL)
        return;
    pthread_mutex_lock(&turns->lock);
    while (turns->current != party)
        pthread_cond_wait(&turns->changed, &turns->lock);
    pthread_mutex_unlock(&turns->lock);
}

/* With the lock held. */
static void give_to_next(bench_turns *turns)
{
    for (int step = 0; step < turns->parties; step++) {
        turns->current = (turns->current + 1) % turns->parties;
        if (!turns->gone[turns->current])
            break;
    }
    pthread_cond_broadcast(&turns->changed);
}

void bench_turns_pass(bench_turns *turns, int party)
{
    if (turns == NULL)
        return;
    pthread_mutex_lock(&turns->lock);
    if (turns->current == party)
        give_to_next(turns);
    pthread_mutex_unlock(&turns->lock);
}

void bench_turns_leave(bench_turns *turns, int party)
{
    pthread_mutex_lock(&turns->lock);
    turns->gone[party] = true;
    if (turns->current == party)
        give_to_next(turns);
    pthread_mutex_unlock(&turns->lock);
}

typedef struct turns_run {
    bench_turns *turns;
    void (*fn)(void *arg, int party);
    void *arg;
} turns_run;

static void party_main(void *arg, int party)
{
    const turns_run *run = arg;
    run->fn(run->arg, party);
    bench_turns_leave(run->turns, party);
}

bool bench_turns_run(bench_turns *turns, void (*fn)(void *arg, int party), void *arg)
{
    turns_run run = {turns, fn, arg};
    return bench_together(turns->parties, false, party_main, &run);
}
