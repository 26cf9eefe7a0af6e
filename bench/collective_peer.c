#include "collective_peer.h"

#include "core/context.h"
#include "mpi_peer.h"
#include "parallel.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE, COUNT, OPERATION, PLACE, AROUND, TIME, OPENMPI, MPICH, RATIO, WRONG, DISTANCE, KEPT, TOTAL, FITS,
      COLUMNS };

static const bench_column columns[COLUMNS] = {
    {"size", "B", 0, false},     {"count", "elements", 0, false},  {"operation", "", 0, true},
    {"place", "", 0, true},      {"around", "", 0, true},          {"time", "us", 4, false},
    {"openmpi", "us", 4, false}, {"mpich", "us", 4, false},        {"best peer / time", "x", 3, false},
    {"#wrong", "", 0, false},    {"cores", "distance", 0, true},   {"kept", "samples", 0, false},
    {"of", "samples", 0, false}, {"ranks <= cores", "", 0, false},
};

#define KINDS BENCH_MPI_KINDS
#define SIDES (1 + BENCH_MPI_LIBRARIES)

/* What both ranks share; only rank 0 writes rows. */
typedef struct peer_run {
    bench_call *call;
    bench_team team;
    bench_mpi_peer peer[BENCH_MPI_LIBRARIES];
    bool has[BENCH_MPI_LIBRARIES];
    int core[BENCH_MPI_RANKS];
    int64_t largest;
    int64_t (*next)(const bench_options *options, int64_t size);
    int64_t wrong;
    double patience; /* seconds that are left to wait for near cores; rank 0's */
    bool again;      /* rank 0's word */
} peer_run;

/* One rank's part of a comparison: a kind of sample of one side. */
typedef struct peer_part {
    bench_team_sample sample; /* first */
    const bench_collective *c;
    bench_mpi_peer *peer; /* NULL: our own */
    unsigned *requests;   /* that this rank saw answered */
    bench_mpi_kind kind;
    volatile uint32_t kept;
} peer_part;

static tp_status once(peer_part *part)
{
    const bench_collective *c = part->c;
    if (part->kind == BENCH_MPI_ALONE)
        return bench_collective_call(c);
    tp_range mine = tp_shard_range(c->count, c->ranks, c->rank), all = {0, c->count};
    bool gathers = c->operation == BENCH_ALL_GATHER;
    tp_range from = gathers ? mine : all, to = c->operation == BENCH_REDUCE_SCATTER ? mine : all;
    float *in = gathers && c->in_place ? c->out : c->in, *out = gathers || !c->in_place ? c->out : c->in;
    bench_mpi_produce(in + from.begin, from.end - from.begin, 1.0f);
    tp_status status = part->kind == BENCH_MPI_CYCLE ? bench_collective_call(c) : TP_OK;
    part->kept = part->kept ^ bench_mpi_consume(out + to.begin, to.end - to.begin);
    return status;
}

/* As the peers do it (bench/peers/mpi_collective.c): one untimed, a barrier, then the sample. */
static tp_status sample_own(void *arg)
{
    peer_part *part = arg;
    tp_ctx *ctx = part->c->ctx;
    TPI_TRY(once(part));
    TPI_TRY(tp_barrier(ctx, tp_ctx_world(ctx)));
    bool clean;
    const bench_watch watch = bench_watch_start(BENCH_OWN_THREAD);
    for (int64_t i = 0; i < part->sample.repeats; i++)
        TPI_TRY(once(part));
    part->sample.seconds = bench_watch_stop(&watch, &clean) / (double)part->sample.repeats;
    part->sample.switched = !clean;
    return TP_OK;
}

static tp_status sample_peer(void *arg)
{
    peer_part *part = arg;
    const bench_collective *c = part->c;
    bench_mpi_sample sample = {.operation = c->operation, .kind = part->kind, .in_place = c->in_place,
                               .count = c->count, .repeats = part->sample.repeats};
    if (c->rank == 0)
        bench_mpi_ask(part->peer, &sample);
    if (!bench_mpi_wait(part->peer, c->rank, ++*part->requests))
        return tpi_fail(c->ctx, TP_ERR_COMM, "--peer %s: its processes are gone", bench_mpi_names[part->peer->library]);
    part->sample.seconds = part->peer->shared->rank[c->rank].seconds;
    const bench_mpi_shared *shared = part->peer->shared;
    double repeats = (double)part->sample.repeats;
    part->sample.switched = !bench_is_clean(shared->rank[c->rank].switched, repeats * part->sample.seconds,
                                            repeats * shared->rank[c->rank].lost);
    return TP_OK;
}

double bench_collective_seconds(const bench_team_figure side[BENCH_MPI_KINDS], bool net)
{
    return net ? side[BENCH_MPI_CYCLE].figure.seconds - side[BENCH_MPI_FRAME].figure.seconds
               : side[BENCH_MPI_ALONE].figure.seconds;
}

double bench_collective_ratio(double own, const double *peers, int count, int kept)
{
    double best = INFINITY;
    for (int i = 0; i < count; i++)
        best = peers[i] < best ? peers[i] : best;
    return own > 0 && best > 0 && best < INFINITY && kept > 0 ? best / own : NAN;
}

static void add_row(peer_run *run, const bench_collective *c, bench_team_figure found[SIDES][KINDS], bool net,
                    double wrong)
{
    bench_table *table = &run->call->table;
    double own = bench_collective_seconds(found[0], net), peers[BENCH_MPI_LIBRARIES];
    bench_figure fewest = found[0][net ? BENCH_MPI_CYCLE : BENCH_MPI_ALONE].figure;
    for (int side = 0; side < SIDES; side++)
        for (int kind = 0; kind < KINDS; kind++)
            if (net == (kind != BENCH_MPI_ALONE) && (side == 0 || run->has[side - 1]))
                fewest = bench_figure_fewer(fewest, found[side][kind].figure);
    bench_row(table);
    bench_integer(table, c->count * (int64_t)sizeof(float));
    bench_integer(table, c->count);
    bench_word(table, "%s", bench_operation_names[c->operation]);
    bench_word(table, "%s", bench_place_names[c->in_place]);
    bench_word(table, "%s", net ? "written, read (net)" : "nothing");
    bench_real(table, own * 1e6);
    for (int library = 0; library < BENCH_MPI_LIBRARIES; library++) {
        peers[library] = run->has[library] ? bench_collective_seconds(found[1 + library], net) : NAN;
        bench_real(table, peers[library] * 1e6);
    }
    bench_real(table, bench_collective_ratio(own, peers, BENCH_MPI_LIBRARIES, fewest.kept));
    if (run->call->options.no_check)
        bench_empty(table);
    else
        bench_integer(table, (int64_t)wrong);
    bench_word(table, "%s", found[0][net ? BENCH_MPI_CYCLE : BENCH_MPI_ALONE].distance);
    bench_integer(table, fewest.kept);
    bench_integer(table, fewest.total);
    bench_truth(table, bench_fits(run->call, BENCH_MPI_RANKS, 1));
}

/* As many on each rank. */
static int64_t elements_of(int64_t bytes)
{
    return bytes / (int64_t)sizeof(float) / BENCH_MPI_RANKS * BENCH_MPI_RANKS;
}

/* Sleeps until the two cores are near each other, while there is patience left. */
static tp_status await_near(peer_run *run, const bench_collective *c)
{
    const struct timespec pause = {0, 20000000};
    double start = bench_now();
    for (bool more = run->call->options.near_seconds > 0; more;) {
        bool near;
        TPI_TRY(bench_team_probe(&run->team, c->ctx, &near));
        if (c->rank == 0)
            run->again = !near && bench_now() - start < run->patience;
        TPI_TRY(tp_barrier(c->ctx, tp_ctx_world(c->ctx)));
        more = run->again;
        if (more)
            nanosleep(&pause, NULL);
    }
    if (c->rank == 0)
        run->patience -= bench_now() - start;
    return TP_OK;
}

/* Measures, again while cores were far from each other most of the time and there is patience left. */
static tp_status compare(peer_run *run, const bench_collective *c, const bench_team_part *parts, int count)
{
    const bench_options *options = &run->call->options;
    const bench_team_plan plan = {.warmup = (int)options->warmup,
                                  .least = 3,
                                  .most = (int)options->samples,
                                  .seconds = options->seconds,
                                  .repeats = options->iterations,
                                  .whole = true};
    for (bool more = true; more;) {
        TPI_TRY(await_near(run, c));
        double start = bench_now();
        TPI_TRY(bench_team_compare(&run->team, c->ctx, &plan, parts, count));
        if (c->rank == 0) {
            run->again = run->patience > 0 && strcmp(parts[0].figure->distance, "far") == 0;
            run->patience -= run->again ? bench_now() - start : 0;
        }
        TPI_TRY(tp_barrier(c->ctx, tp_ctx_world(c->ctx)));
        more = run->again;
    }
    return TP_OK;
}

/* Checks our own, then takes all sides and kinds in turns. */
static tp_status run_case(peer_run *run, bench_collective *c, unsigned requests[BENCH_MPI_LIBRARIES])
{
    const bench_options *options = &run->call->options;
    bench_team_figure found[SIDES][KINDS] = {0};
    peer_part part[SIDES][KINDS] = {0};
    bench_team_part parts[SIDES * KINDS];
    int count = 0;
    double wrong = 0;
    bench_collective_prepare(c);
    if (c->rank == 0)
        bench_progress("collective: %s beside MPI, %lld bytes", bench_operation_names[c->operation],
                       (long long)c->count * 4);
    if (!options->no_check) {
        int64_t mine = 0;
        TPI_TRY(bench_collective_check(c, &mine));
        TPI_TRY(bench_team_sum(&run->team, c->ctx, (double)mine, &wrong));
    }
    for (int side = 0; side < SIDES; side++)
        for (int kind = 0; kind < KINDS; kind++) {
            if (side > 0 && !run->has[side - 1])
                continue;
            part[side][kind] = (peer_part){.c = c, .kind = kind, .peer = side > 0 ? &run->peer[side - 1] : NULL};
            part[side][kind].requests = side > 0 ? &requests[side - 1] : NULL;
            parts[count++] = (bench_team_part){
                .fn = side > 0 ? sample_peer : sample_own, .arg = &part[side][kind], .figure = &found[side][kind]};
        }
    TPI_TRY(compare(run, c, parts, count));
    if (c->rank == 0) {
        run->wrong += (int64_t)wrong;
        add_row(run, c, found, false, wrong);
        add_row(run, c, found, true, wrong);
    }
    return TP_OK;
}

static tp_status run_cases(peer_run *run, bench_collective *c)
{
    const bench_options *options = &run->call->options;
    unsigned requests[BENCH_MPI_LIBRARIES] = {1, 1};
    for (int o = 0; o < options->operations.count; o++) {
        int64_t before = 0; /* sizes of the same elements, or of none, are no case */
        for (int64_t size = options->begin_bytes; size <= options->end_bytes; size = run->next(options, size)) {
            c->operation = (bench_operation)options->operations.value[o];
            c->count = elements_of(size);
            for (int place = 0; place < options->places.count && c->count != before; place++) {
                c->in_place = options->places.value[place] == 1;
                TPI_TRY(run_case(run, c, requests));
            }
            before = c->count;
        }
    }
    return TP_OK;
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    peer_run *run = arg;
    bench_collective c = {
        .ctx = ctx, .ranks = BENCH_MPI_RANKS, .rank = tp_ctx_rank(ctx), .dtype = TP_DTYPE_F32, .reduce = TP_REDUCE_SUM};
    size_t bytes = (size_t)run->largest;
    if (run->core[c.rank] >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(run->core[c.rank], &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, bytes, &c.in);
    if (status == TP_OK)
        status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, bytes, &c.out);
    if (status == TP_OK) {
        memset(c.in, 0, bytes);
        memset(c.out, 0, bytes);
        status = run_cases(run, &c);
    }
    if (c.in != NULL)
        tp_ctx_release(ctx, TP_MEMORY_OTHER, c.in, bytes);
    if (c.out != NULL)
        tp_ctx_release(ctx, TP_MEMORY_OTHER, c.out, bytes);
    return status;
}

int bench_check_peers(bench_call *call)
{
    bench_options *options = &call->options;
    const char *peer = bench_mpi_names[options->peers.value[0]];
    bench_list_default(&options->operations, 3,
                       (const int64_t[]){BENCH_ALL_REDUCE, BENCH_REDUCE_SCATTER, BENCH_ALL_GATHER});
    bench_list_default(&options->places, 1, (const int64_t[]){1});
    if (bench_on_gpu(call) || options->link != NULL)
        return bench_refuse(
            call, "--peer %s: compares thread ranks on the CPU, without --device cuda and without --link", peer);
    if (options->ranks.count > 1 || (options->ranks.count == 1 && options->ranks.value[0] != BENCH_MPI_RANKS))
        return bench_refuse(call, "--ranks %lld: --peer %s compares %d",
                            (long long)options->ranks.value[options->ranks.count - 1], peer, BENCH_MPI_RANKS);
    if (options->dtypes.count > 1 || (options->dtypes.count == 1 && options->dtypes.value[0] != TP_DTYPE_F32))
        return bench_refuse(call, "--dtype %s: --peer %s compares f32",
                            tp_dtype_name((tp_dtype)options->dtypes.value[options->dtypes.count - 1]), peer);
    if (options->algorithms.count > 0 || options->reduce > 1)
        return bench_refuse(
            call, "--peer %s compares sums by the algorithm that each side chooses, without --algorithm and --reduce",
            peer);
    if (options->end_bytes / (int64_t)sizeof(float) > INT_MAX)
        return bench_refuse(call, "--end %lld: MPI counts elements in an int, so --peer %s compares at most %lld bytes",
                            (long long)options->end_bytes, peer, (long long)INT_MAX * (long long)sizeof(float));
    if (options->end_bytes > 0 && elements_of(options->end_bytes) == 0)
        return bench_refuse(call, "--end %lld: --peer %s compares an element a rank at least, %d bytes",
                            (long long)options->end_bytes, peer, BENCH_MPI_RANKS * (int)sizeof(float));
    for (int i = 0; i < options->operations.count; i++)
        if (options->operations.value[i] > BENCH_ALL_GATHER)
            return bench_refuse(call, "--operation %s: --peer %s compares all_reduce, reduce_scatter and all_gather",
                                bench_operation_names[options->operations.value[i]], peer);
    return BENCH_OK;
}

/* The first two cores that this process may use; -1, unpinned, where there is only one. */
static void choose_cores(int core[BENCH_MPI_RANKS])
{
    cpu_set_t set;
    int found = 0, usable[BENCH_MPI_RANKS];
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        CPU_ZERO(&set);
    for (int i = 0; i < CPU_SETSIZE && found < BENCH_MPI_RANKS; i++)
        if (CPU_ISSET(i, &set))
            usable[found++] = i;
    for (int rank = 0; rank < BENCH_MPI_RANKS; rank++)
        core[rank] = found == BENCH_MPI_RANKS ? usable[rank] : -1;
}

static void note_results(peer_run *run)
{
    bench_call *call = run->call;
    for (int library = 0; library < BENCH_MPI_LIBRARIES; library++)
        if (run->has[library])
            bench_note(
                &call->table,
                "%s: %.*s; two processes on the ranks' cores, private buffers on huge pages, memory that malloc keeps",
                bench_mpi_names[library], (int)strcspn(run->peer[library].shared->library, "\n,"),
                run->peer[library].shared->library);
    if (run->wrong > 0)
        bench_check_failed(call, "%lld elements differ from the exact result", (long long)run->wrong);
    bench_note_kept(call, KEPT, TOTAL);
    bench_note(&call->table, "written, read (net): each rank writes its input before and reads its output after every "
                             "call; less the time of only that");
}

int bench_collective_peers(bench_call *call, int64_t (*next)(const bench_options *options, int64_t size))
{
    const bench_options *options = &call->options;
    bench_begin(call, columns, COLUMNS);
    call->table.plot = (bench_plot){.x = SIZE, .y = RATIO, .only = FITS, .log_x = true, .log_y = true, .groups = 3,
                                    .group = {OPERATION, PLACE, AROUND}};
    snprintf(call->table.title, sizeof call->table.title, "collectives of thread ranks beside those of MPI");
    peer_run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return bench_fail(call, "out of memory");
    run->call = call;
    run->next = next;
    run->largest = options->end_bytes + 64;
    run->patience = options->near_seconds;
    choose_cores(run->core);
    int status = BENCH_OK;
    for (int i = 0; i < options->peers.count && status == BENCH_OK; i++) {
        int library = (int)options->peers.value[i];
        if (!run->has[library] &&
            !bench_mpi_start(&run->peer[library], library, run->largest, run->core, call->message))
            status = BENCH_FAILED;
        run->has[library] = status == BENCH_OK;
    }
    if (status == BENCH_OK) {
        bench_team_begin(call, &run->team, BENCH_MPI_RANKS);
        tp_run_options start = bench_run_options(call, BENCH_MPI_RANKS, 1);
        tp_status ran = tp_run_ranks(&start, rank_main, run);
        status = ran == TP_OK ? BENCH_OK : bench_fail(call, "%s: %s", tp_status_name(ran), tp_last_message());
        note_results(run);
    }
    for (int library = 0; library < BENCH_MPI_LIBRARIES; library++)
        bench_mpi_stop(&run->peer[library]);
    free(run);
    return status;
}
