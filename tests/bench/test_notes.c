/* What a team enters of its samples, and the figures that come of it: near and far, moved, the same for all parts. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>

#include "other_work.h"
#include "team.h"

#define NEAR 50e-9
#define FAR 190e-9

static bench_team_notes books[2];

static bool enter(int part, double seconds, double before, double after, bool clean)
{
    return bench_notes_enter(&books[part], &(bench_taken){.seconds = seconds, .repeats = 2, .clean = clean,
                                                          .probed = true, .before = before, .after = after});
}

static void begin(void)
{
    memset(books, 0, sizeof books);
}

Test(notes, distances)
{
    cr_assert(bench_is_near(45e-9) && bench_is_near(60e-9));
    cr_assert(!bench_is_near(180e-9) && !bench_is_near(1e-3), "far, or given up");
    cr_assert(!bench_is_near(1e-9), "the other rank had given up");
}

/* The figure is of the distance seen more often; what was seen at the other is counted only. */
Test(notes, figures_are_of_one_distance)
{
    begin();
    for (int i = 0; i < 3; i++)
        cr_assert(enter(0, 1, NEAR, NEAR, true));
    for (int i = 0; i < 2; i++)
        cr_assert(enter(0, 9, FAR, FAR, true));
    bench_team_figure figure = bench_notes_figure(books, 1, 0, true);
    cr_assert_eq(figure.figure.seconds, 1);
    cr_assert(figure.figure.kept == 3 && figure.figure.total == 5);
    cr_assert_str_eq(figure.distance, "near");
    cr_assert_eq(figure.probe_seconds, NEAR);
    cr_assert_eq(books[0].passed, 2 * 21.0);
    for (int i = 0; i < 2; i++)
        enter(0, 9, FAR, FAR, true);
    figure = bench_notes_figure(books, 1, 0, true);
    cr_assert_eq(figure.figure.seconds, 9);
    cr_assert(figure.figure.kept == 4 && figure.figure.total == 7);
    cr_assert_str_eq(figure.distance, "far");
    cr_assert_eq(figure.probe_seconds, FAR);
    cr_assert_eq(bench_notes_turns(&books[0]), 7);
}

Test(notes, moved_meanwhile_is_not_clean)
{
    begin();
    cr_assert(!enter(0, 5, NEAR, FAR, true) && !enter(0, 5, FAR, NEAR, true));
    cr_assert(enter(0, 1, NEAR, NEAR, true) && !enter(0, 7, NEAR, NEAR, false));
    bench_team_figure figure = bench_notes_figure(books, 1, 0, true);
    cr_assert_eq(figure.figure.seconds, 1);
    cr_assert(figure.figure.kept == 1 && figure.figure.total == 4);
    begin();
    cr_assert(bench_notes_enter(&books[0], &(bench_taken){.seconds = 3, .repeats = 1, .clean = true}), "not probed");
    figure = bench_notes_figure(books, 1, 0, false);
    cr_assert(figure.figure.seconds == 3 && figure.figure.kept == 1);
    cr_assert_str_empty(figure.distance);
}

/* Parts that are compared have their figures of the same distance, or nothing to compare. */
Test(notes, parts_are_compared_at_one_distance)
{
    begin();
    for (int i = 0; i < 3; i++) {
        enter(0, 1, NEAR, NEAR, true);
        enter(1, 4, i == 0 ? NEAR : FAR, i == 0 ? NEAR : FAR, true);
    }
    bench_team_figure other = bench_notes_figure(books, 2, 1, true);
    cr_assert_str_eq(other.distance, "near");
    cr_assert_eq(other.figure.kept, 1);
    begin();
    for (int i = 0; i < 3; i++)
        enter(0, 1, NEAR, NEAR, true);
    enter(1, 4, FAR, FAR, true);
    bench_team_figure most = bench_notes_figure(books, 2, 0, true);
    other = bench_notes_figure(books, 2, 1, true);
    cr_assert(most.figure.kept == 3 && other.figure.seconds == 4);
    cr_assert_str_eq(other.distance, "far");
    cr_assert(other.figure.kept == 0 && other.figure.total == 1, "near and far would be compared");
}

Test(notes, turns_are_judged_for_all_parts)
{
    begin();
    enter(0, 1, NEAR, NEAR, true);
    enter(1, 2, NEAR, NEAR, true);
    bench_notes_judge(books, 2);
    enter(0, 3, NEAR, NEAR, false);
    enter(1, 4, NEAR, NEAR, true);
    bench_notes_judge(books, 2);
    for (int part = 0; part < 2; part++)
        cr_assert(books[part].near.clean[0] && !books[part].near.clean[1]);
}

/* Whoever is watched: the thread that lost its core is this one. */
Test(notes, watches_see_a_thread_that_lost_its_core)
{
    pid_t other = tpt_begin_other_work();
    bool clean[3];
    for (int watched = BENCH_OWN_THREAD; watched <= BENCH_ALL_WAITS; watched++) {
        const bench_watch watch = bench_watch_start((bench_watched)watched);
        tpt_until_disturbed(NULL);
        cr_assert_gt(bench_watch_stop(&watch, &clean[watched]), 0);
    }
    tpt_end_other_work(other);
    cr_assert(!clean[BENCH_OWN_THREAD] && !clean[BENCH_ALL_SWITCHES] && !clean[BENCH_ALL_WAITS]);
}

/* ---- ranks with workers ------------------------------------------------------------------------------------------ */

typedef struct worker {
    pthread_t thread;
    sem_t asked, done;
    bool ending;
} worker;

static void *worker_main(void *arg)
{
    worker *self = arg;
    for (;;) {
        sem_wait(&self->asked);
        if (self->ending)
            return NULL;
        tpt_until_disturbed(NULL);
        sem_post(&self->done);
    }
}

/* As of a rank whose thread waits for a worker. */
static tp_status wait_for_worker(void *arg)
{
    worker *self = arg;
    sem_post(&self->asked);
    sem_wait(&self->done);
    return TP_OK;
}

static tp_status measure_rank(tp_ctx *ctx, void *arg)
{
    static bench_team team;
    worker other = {.ending = false};
    sem_init(&other.asked, 0, 0);
    sem_init(&other.done, 0, 0);
    bench_team_init(&team, 1, 2);
    if (pthread_create(&other.thread, NULL, worker_main, &other) != 0)
        return TP_ERR_MEMORY;
    tp_status status = bench_team_measure(&team, ctx, &(bench_team_plan){.least = 3, .most = 3, .repeats = 1},
                                          wait_for_worker, &other, arg);
    other.ending = true;
    sem_post(&other.asked);
    pthread_join(other.thread, NULL);
    return status;
}

Test(notes, workers_that_were_switched_out_are_noticed)
{
    bench_team_figure figure;
    pid_t other = tpt_begin_other_work();
    tp_status status = tp_run_ranks(&(tp_run_options){.ranks = 1, .ctx = {.threads = 2}}, measure_rank, &figure);
    tpt_end_other_work(other);
    cr_assert_eq(status, TP_OK, "%s", tp_last_message());
    cr_assert(figure.figure.kept == 0 && figure.figure.total == 3, "%d of %d", figure.figure.kept, figure.figure.total);
}

static tp_status probe_rank(tp_ctx *ctx, void *arg)
{
    static bench_team team;
    bool *near = arg;
    if (tp_ctx_rank(ctx) == 0)
        bench_team_init(&team, 2, 1);
    return bench_team_probe(&team, ctx, &near[tp_ctx_rank(ctx)]);
}

/* Whoever waits for near cores must not wait for what can't be. */
Test(notes, two_ranks_on_one_core_are_near)
{
    bool near[2] = {false, false};
    tp_status status = tp_run_ranks(&(tp_run_options){.ranks = 2}, probe_rank, near);
    cr_assert_eq(status, TP_OK, "%s", tp_last_message());
    cr_assert(near[0] && near[1]);
}
