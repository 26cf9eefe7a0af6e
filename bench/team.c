#include "team.h"

#include "core/context.h"

#include <math.h>
#include <stdlib.h>

#define SAMPLE_SECONDS 2e-4
#define PROBE_ROUNDS 64
#define GIVE_UP_SECONDS 1e-3

void bench_team_init(bench_team *team, int ranks, int cores)
{
    *team = (bench_team){.ranks = ranks, .probed = ranks > 1 && ranks <= cores};
    atomic_init(&team->probe[0].turn, 0);
    atomic_init(&team->probe[1].turn, 0);
}

static tp_status meet(tp_ctx *ctx)
{
    TPI_TRY(tp_barrier(ctx, tp_ctx_world(ctx)));
    return tp_ctx_synchronize(ctx);
}

bench_watched bench_watched_of(const tp_ctx *ctx)
{
    return tp_ctx_threads(ctx) > 1 ? BENCH_ALL_WAITS : BENCH_OWN_THREAD;
}

/* Ranks 0 and 1 answer each other's flags. The other rank may be switched out: then it is given up, and the time is
 * long. Flags only grow, so a round that was given up can't be mistaken for a later one. */
static double probe(bench_team *team, int rank)
{
    if (!team->probed || rank > 1)
        return 0;
    long base = atomic_load_explicit(&team->probe[rank].turn, memory_order_relaxed);
    double start = bench_now();
    for (long round = 1; round <= PROBE_ROUNDS; round++) {
        atomic_store_explicit(&team->probe[rank].turn, base + round, memory_order_release);
        for (long spins = 1; atomic_load_explicit(&team->probe[1 - rank].turn, memory_order_acquire) < base + round;
             spins++) {
            if (spins % 1024 == 0 && bench_now() - start > GIVE_UP_SECONDS) {
                atomic_store_explicit(&team->probe[rank].turn, base + PROBE_ROUNDS, memory_order_release);
                return bench_now() - start;
            }
        }
    }
    return (bench_now() - start) / PROBE_ROUNDS;
}

typedef struct sampler {
    bench_team *team;
    tp_ctx *ctx;
    int rank;
    const bench_team_part *parts;
    int count;
    bool whole;
    tpi_timer *timer; /* NULL: by the host's clock */
} sampler;

static tp_status mark(const sampler *self, int which)
{
    return self->timer != NULL ? self->ctx->backend->timer_mark(self->timer, self->ctx->compute, which) : TP_OK;
}

/* One sample of a part on this rank; afterwards its slot is filled. */
static tp_status sample(const sampler *self, const bench_team_part *part, int64_t repeats)
{
    if (self->whole) {
        bench_team_sample *taken = part->arg;
        taken->repeats = repeats;
        TPI_TRY(part->fn(taken));
        self->team->slot[self->rank].seconds = taken->seconds;
        self->team->slot[self->rank].switched = taken->switched;
        return meet(self->ctx);
    }
    double compute[2], comm[2];
    tp_ctx_times(self->ctx, &compute[0], &comm[0]);
    bool clean;
    const bench_watch watch = bench_watch_start(bench_watched_of(self->ctx));
    TPI_TRY(mark(self, 0));
    for (int64_t i = 0; i < repeats; i++)
        TPI_TRY(part->fn(part->arg));
    TPI_TRY(mark(self, 1));
    TPI_TRY(tp_ctx_synchronize(self->ctx));
    double seconds = bench_watch_stop(&watch, &clean);
    if (self->timer != NULL)
        TPI_TRY(self->ctx->backend->timer_read(self->timer, &seconds));
    self->team->slot[self->rank].seconds = seconds / (double)repeats;
    self->team->slot[self->rank].switched = !clean && !part->lanes && self->timer == NULL;
    tp_ctx_times(self->ctx, &compute[1], &comm[1]);
    self->team->slot[self->rank].compute += compute[1] - compute[0];
    self->team->slot[self->rank].comm += comm[1] - comm[0];
    return meet(self->ctx);
}

static void take_turn(const sampler *self)
{
    bench_turns_take(self->team->turns, self->team->party);
}

static void pass_turn(const sampler *self)
{
    if (self->rank == 0)
        bench_turns_pass(self->team->turns, self->team->party);
}

static void gather_slots(const bench_team *team, double *seconds, bool *clean)
{
    *seconds = 0;
    *clean = true;
    for (int rank = 0; rank < team->ranks; rank++) {
        *seconds += team->slot[rank].seconds / team->ranks;
        *clean = *clean && !team->slot[rank].switched;
    }
}

/* Without a warm-up. */
static const bench_team_plan once = {.least = 1, .most = 1, .repeats = 1};

/* Warms up, and finds how many calls of a part make a sample. */
static tp_status warm_up_part(const sampler *self, const bench_team_plan *plan, int index)
{
    bench_team *team = self->team;
    TPI_TRY(meet(self->ctx));
    if (plan != &once)
        TPI_TRY(sample(self, &self->parts[index], plan->warmup > 0 ? plan->warmup : 1));
    if (self->rank == 0) {
        double seconds;
        bool clean;
        gather_slots(team, &seconds, &clean);
        double repeats = seconds > 0 ? ceil(SAMPLE_SECONDS / seconds) : 1;
        team->repeats[index] = plan->repeats > 0 ? plan->repeats : repeats < 1000 ? (int64_t)repeats : 1000;
        team->more = true;
    }
    return meet(self->ctx);
}

static tp_status warm_up(const sampler *self, const bench_team_plan *plan)
{
    bench_team *team = self->team;
    take_turn(self);
    double compute = team->slot[self->rank].compute, comm = team->slot[self->rank].comm;
    for (int i = 0; i < self->count; i++)
        TPI_TRY(warm_up_part(self, plan, i));
    team->slot[self->rank].compute = compute;
    team->slot[self->rank].comm = comm;
    pass_turn(self);
    return TP_OK;
}

/* Whether there is to be one more turn. */
static bool wanted(const bench_team_notes *books, int count, const bench_team_plan *plan)
{
    int most = plan->most < BENCH_SAMPLES ? plan->most : BENCH_SAMPLES, clean = BENCH_SAMPLES,
        turns = bench_notes_turns(&books[0]);
    double passed = 0;
    for (int i = 0; i < count; i++) {
        int here = bench_sample_clean(&books[i].near) + bench_sample_clean(&books[i].far);
        clean = here < clean ? here : clean;
        passed += books[i].passed / count;
    }
    /* Several parts are seldom all clean, and waiting for it costs as many times more. */
    int patience = count > 1 ? 2 : BENCH_PATIENCE;
    double limit = clean < plan->least ? patience * plan->seconds : plan->seconds;
    return turns < most && (turns < plan->least || passed < limit);
}

static tp_status take_sample(const sampler *self, int index, bench_team_notes *book, bench_samples *copy)
{
    bench_team *team = self->team;
    TPI_TRY(meet(self->ctx));
    double before = probe(team, self->rank);
    TPI_TRY(meet(self->ctx));
    TPI_TRY(sample(self, &self->parts[index], team->repeats[index]));
    double after = probe(team, self->rank);
    if (self->rank != 0)
        return TP_OK;
    bench_taken taken = {.repeats = team->repeats[index], .probed = team->probed, .before = before, .after = after};
    gather_slots(team, &taken.seconds, &taken.clean);
    bool clean = bench_notes_enter(book, &taken);
    if (copy != NULL)
        bench_sample_add(copy, taken.seconds, clean);
    return TP_OK;
}

/* books: rank 0's. */
static tp_status take_samples(const sampler *self, const bench_team_plan *plan, bench_team_notes *books)
{
    while (self->team->more) {
        take_turn(self);
        for (int i = 0; i < self->count; i++)
            TPI_TRY(take_sample(self, i, self->rank == 0 ? &books[i] : NULL, i == 0 ? plan->taken : NULL));
        if (self->rank == 0 && plan->together)
            bench_notes_judge(books, self->count);
        if (self->rank == 0)
            self->team->more = wanted(books, self->count, plan);
        TPI_TRY(meet(self->ctx));
        pass_turn(self);
    }
    return TP_OK;
}

tp_status bench_team_compare(bench_team *team, tp_ctx *ctx, const bench_team_plan *plan, const bench_team_part *parts,
                             int count)
{
    sampler self = {
        .team = team, .ctx = ctx, .rank = tp_ctx_rank(ctx), .parts = parts, .count = count, .whole = plan->whole};
    bench_team_notes *own = self.rank == 0 && plan->notes == NULL ? calloc((size_t)count, sizeof *own) : NULL,
          *books = own != NULL ? own : plan->notes;
    if (self.rank == 0 && books == NULL)
        return TP_ERR_MEMORY;
    if (self.rank == 0)
        bench_notes_begin(books, count);
    bench_figure *alone = plan->alone;
    if (team->untimed && plan->seconds > 0)
        plan = &once;
    tp_status status = team->on_gpu ? ctx->backend->timer_create(ctx, &self.timer) : TP_OK;
    if (status == TP_OK)
        status = warm_up(&self, plan);
    if (status == TP_OK)
        status = take_samples(&self, plan, books);
    for (int i = 0; i < count && status == TP_OK && self.rank == 0; i++) {
        *parts[i].figure = bench_notes_figure(books, count, i, team->probed);
        if (alone != NULL)
            alone[i] = bench_notes_alone(books, count, i);
    }
    ctx->backend->timer_destroy(self.timer);
    free(own);
    return status;
}

tp_status bench_team_measure(bench_team *team, tp_ctx *ctx, const bench_team_plan *plan, tp_status (*fn)(void *arg),
                             void *arg, bench_team_figure *figure)
{
    const bench_team_part part = {.fn = fn, .arg = arg, .figure = figure};
    return bench_team_compare(team, ctx, plan, &part, 1);
}

tp_status bench_team_probe(bench_team *team, tp_ctx *ctx, bool *near)
{
    TPI_TRY(meet(ctx));
    *near = bench_is_near(probe(team, tp_ctx_rank(ctx))) || !team->probed;
    return meet(ctx);
}

double bench_team_comm_share(const bench_team *team)
{
    double compute = 0, comm = 0;
    if (team->on_gpu)
        return NAN; /* the host's times are of issuing */
    for (int rank = 0; rank < team->ranks; rank++) {
        compute += team->slot[rank].compute;
        comm += team->slot[rank].comm;
    }
    return compute + comm > 0 ? comm / (compute + comm) : 0;
}

tp_status bench_team_sum(bench_team *team, tp_ctx *ctx, double mine, double *sum)
{
    team->slot[tp_ctx_rank(ctx)].seconds = mine;
    TPI_TRY(meet(ctx));
    *sum = 0;
    for (int rank = 0; rank < team->ranks; rank++)
        *sum += team->slot[rank].seconds;
    return meet(ctx);
}

tp_status bench_team_most(bench_team *team, tp_ctx *ctx, double mine, double *most)
{
    team->slot[tp_ctx_rank(ctx)].seconds = mine;
    TPI_TRY(meet(ctx));
    *most = team->slot[0].seconds;
    for (int rank = 1; rank < team->ranks; rank++)
        if (!(team->slot[rank].seconds <= *most))
            *most = team->slot[rank].seconds;
    return meet(ctx);
}
