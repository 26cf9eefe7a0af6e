#include "team.h"

#include "core/context.h"

#include <math.h>
#include <stdlib.h>

#define SAMPLE_SECONDS 2e-4
#define PROBE_ROUNDS 64
/* Flags pass between cores that share an L3 cache in about 50 ns, between others in about 190. */
#define NEAR_SECONDS 110e-9
#define BOGUS_SECONDS 10e-9 /* faster than any exchange: the other rank had given the round up */
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

/* Ranks 0 and 1 answer each other's flags. The other rank may be switched out: then it is given up, and the time is long. Flags only grow, so a round that was
 * given up can't be mistaken for a later one. */
static double probe(bench_team *team, int rank)
{
    if (!team->probed || rank > 1)
        return 0;
    long base = atomic_load_explicit(&team->probe[rank].turn, memory_order_relaxed);
    double start = bench_now();
    for (long round = 1; round <= PROBE_ROUNDS; round++) {
        atomic_store_explicit(&team->probe[rank].turn, base + round, memory_order_release);
        for (long spins = 1; atomic_load_explicit(&team->probe[1 - rank].turn, memory_order_acquire) < base + round; spins++) {
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
    tp_status (*fn)(void *arg);
    void *arg;
} sampler;

/* One sample on this rank; afterwards its slot is filled. */
static tp_status sample(const sampler *self, int64_t repeats)
{
    double compute[2], comm[2];
    tp_ctx_times(self->ctx, &compute[0], &comm[0]);
    long before = bench_thread_switches();
    double start = bench_now();
    for (int64_t i = 0; i < repeats; i++)
        TPI_TRY(self->fn(self->arg));
    TPI_TRY(tp_ctx_synchronize(self->ctx));
    self->team->slot[self->rank].seconds = (bench_now() - start) / (double)repeats;
    self->team->slot[self->rank].switched = bench_thread_switches() != before;
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

static bool is_near(double seconds)
{
    return seconds > BOGUS_SECONDS && seconds < NEAR_SECONDS;
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

/* Warms up, and finds how many calls make a sample. */
static tp_status warm_up(const sampler *self, const bench_team_plan *plan)
{
    bench_team *team = self->team;
    take_turn(self);
    TPI_TRY(meet(self->ctx));
    double compute = team->slot[self->rank].compute, comm = team->slot[self->rank].comm;
    TPI_TRY(sample(self, plan->warmup > 0 ? plan->warmup : 1));
    team->slot[self->rank].compute = compute;
    team->slot[self->rank].comm = comm;
    if (self->rank == 0) {
        double seconds;
        bool clean;
        gather_slots(team, &seconds, &clean);
        double repeats = seconds > 0 ? ceil(SAMPLE_SECONDS / seconds) : 1;
        team->repeats = plan->repeats > 0 ? plan->repeats : repeats < 1000 ? (int64_t)repeats : 1000;
        team->more = true;
    }
    TPI_TRY(meet(self->ctx));
    pass_turn(self);
    return TP_OK;
}

static void take_figure(const bench_samples *near, const bench_samples *far, double *probes, bool probed, bench_team_figure *out)
{
    int near_clean = bench_sample_clean(near), far_clean = bench_sample_clean(far);
    bool nearer = near_clean > far_clean || (near_clean == far_clean && near->count > far->count);
    out->figure = bench_sample_figure(nearer ? near : far);
    out->figure.total = near->count + far->count;
    out->distance = !probed ? "" : nearer ? "near" : "far";
    out->probe_seconds = probed ? bench_median(probes, near->count + far->count) : 0;
}

/* Rank 0's notes of one measurement. */
typedef struct notes {
    bench_samples near, far;
    double probes[BENCH_SAMPLES];
    double passed; /* seconds in samples */
} notes;

/* Rank 0 enters a sample and decides whether there is to be one more. */
static void enter_sample(bench_team *team, const bench_team_plan *plan, notes *book, int turn, double before, double after)
{
    double seconds;
    bool clean;
    gather_slots(team, &seconds, &clean);
    /* Moved in between: neither near nor far. */
    bool moved = team->probed && is_near(before) != is_near(after);
    bench_sample_add(is_near(before) ? &book->near : &book->far, seconds, clean && !moved);
    book->probes[turn] = before < after ? before : after;
    book->passed += seconds * (double)team->repeats;
    int most = plan->most < BENCH_SAMPLES ? plan->most : BENCH_SAMPLES;
    int clean_ones = bench_sample_clean(&book->near) + bench_sample_clean(&book->far);
    double limit = clean_ones < plan->least ? BENCH_PATIENCE * plan->seconds : plan->seconds;
    team->more = turn + 1 < most && (turn + 1 < plan->least || book->passed < limit);
}

static tp_status take_samples(const sampler *self, const bench_team_plan *plan, notes *book)
{
    for (int turn = 0; self->team->more; turn++) {
        take_turn(self);
        TPI_TRY(meet(self->ctx));
        double before = probe(self->team, self->rank);
        TPI_TRY(meet(self->ctx));
        TPI_TRY(sample(self, self->team->repeats));
        double after = probe(self->team, self->rank);
        if (self->rank == 0)
            enter_sample(self->team, plan, book, turn, before, after);
        TPI_TRY(meet(self->ctx));
        pass_turn(self);
    }
    return TP_OK;
}

tp_status bench_team_measure(bench_team *team, tp_ctx *ctx, const bench_team_plan *plan, tp_status (*fn)(void *arg), void *arg,
                             bench_team_figure *figure)
{
    sampler self = {.team = team, .ctx = ctx, .rank = tp_ctx_rank(ctx), .fn = fn, .arg = arg};
    notes *book = self.rank == 0 ? calloc(1, sizeof *book) : NULL;
    if (self.rank == 0 && book == NULL)
        return TP_ERR_MEMORY;
    tp_status status = warm_up(&self, plan);
    if (status == TP_OK)
        status = take_samples(&self, plan, book);
    if (status == TP_OK && self.rank == 0)
        take_figure(&book->near, &book->far, book->probes, team->probed, figure);
    free(book);
    return status;
}

double bench_team_comm_share(const bench_team *team)
{
    double compute = 0, comm = 0;
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
