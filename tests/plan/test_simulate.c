/* Simulated times against closed forms, and properties that hold for every plan. */
#include "costs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct times {
    double seconds, compute, comm, exposed, hidden;
} times;

static times run(tp_overlap algorithm, tp_pattern pattern, int ranks, int chunks, tp_plan_costs costs)
{
    tp_plan *plan = tpt_plan(algorithm, pattern, ranks, chunks);
    tp_timeline *timeline = tpt_simulate(plan, &costs);
    times out = {timeline->seconds, timeline->compute_seconds, timeline->comm_seconds, timeline->exposed_seconds,
                 timeline->hidden};
    tp_timeline_destroy(timeline);
    tp_plan_destroy(plan);
    return out;
}

/* One after the other: the collective, then the GEMM, or the other way round. */
Test(simulate, none_adds_up)
{
    for (int n = 2; n <= 16; n++) {
        tp_plan_costs costs = tpt_costs(3, 2);
        costs.link.latency_seconds = 0.25;
        costs.gemm_overhead[0] = costs.gemm_overhead[1] = 0.125;
        costs.transfer_overhead = 0.0625;
        double part = (double)(n - 1) / n, comm = 2 * part + 0.25 + 0.0625;
        times gather = run(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, n, 1, costs);
        tpt_same(gather.seconds, comm + 3.125, "gather + GEMM");
        tpt_same(gather.comm, comm, "comm");
        tpt_same(gather.compute, 3.125, "compute");
        tpt_same(gather.hidden, 0, "hidden");
        tpt_same(gather.exposed, comm, "exposed");
        tpt_same(run(TP_OVERLAP_NONE, TP_PATTERN_GEMM_SCATTER, n, 1, costs).seconds, comm + 3.125, "GEMM + scatter");
        tpt_same(run(TP_OVERLAP_NONE, TP_PATTERN_GEMM_REDUCE, n, 1, costs).seconds,
                 2 * 2 * part + 2 * 0.25 + 0.0625 + 3.125, "GEMM + reduce");
        tpt_same(run(TP_OVERLAP_NONE, TP_PATTERN_CHAIN, n, 1, costs).seconds, 2 * comm + 2 * 3.125, "chain");
    }
}

/* Adds of a collective are not communication. */
Test(simulate, adds_are_compute)
{
    tp_plan_costs costs = tpt_costs(3, 2);
    costs.reduce_bytes_per_second = TPT_BYTES; /* reads all, writes its half */
    times t = run(TP_OVERLAP_NONE, TP_PATTERN_GEMM_SCATTER, 2, 1, costs);
    tpt_same(t.comm, 1, "comm");
    tpt_same(t.compute, 3 + 1.5, "compute");
    tpt_same(t.seconds, 3 + 1 + 1.5, "seconds");
    tpt_same(t.hidden, -1.5, "hidden: neither GEMM nor communication, adds make it less");
    times p = run(TP_OVERLAP_PULL, TP_PATTERN_GEMM_SCATTER, 2, 4, costs);
    tpt_same(p.comm, 1, "comm of pull");
    tpt_same(p.compute, 3 + 1.5, "compute of pull");
}

/* Two ranks, the remote half's transfer as long as the whole GEMM: all is hidden but the first or last chunk's half. */
Test(simulate, half_a_chunk_stays_exposed)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_PULL, TP_OVERLAP_RING};
    static const tp_pattern patterns[] = {TP_PATTERN_GATHER_GEMM, TP_PATTERN_GEMM_SCATTER};
    for (int a = 0; a < 2; a++)
        for (int p = 0; p < 2; p++)
            for (int chunks = 1; chunks <= 16; chunks++) {
                times t = run(algorithms[a], patterns[p], 2, chunks, tpt_costs(1, 2));
                tpt_same(t.seconds, 1 + 0.5 / chunks, "seconds");
                tpt_same(t.hidden, 1 - 0.5 / chunks, "hidden");
                tpt_same(t.comm, 1, "comm");
            }
}

/* Any ratio of link to GEMM. Gather: the link runs from the start, the GEMM's last chunk follows it, unless the GEMM is
 * the longer one. */
Test(simulate, gather_of_two_ranks)
{
    static const double links[] = {0.1, 0.5, 0.9, 1, 1.5, 3, 10};
    for (int i = 0; i < 7; i++)
        for (int chunks = 1; chunks <= 8; chunks *= 2) {
            double comm = links[i], chunk = 0.5 / chunks;
            times t = run(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, chunks, tpt_costs(1, 2 * comm));
            /* chunk k is there at comm k / c; the GEMM does own half, then chunks in order */
            double end = 0.5;
            for (int k = 1; k <= chunks; k++)
                end = fmax(end, comm * k / chunks) + chunk;
            tpt_same(t.seconds, end, "seconds");
        }
}

/* The same at any number of ranks: n - 1 steps, each chunk's GEMM after its arrival. */
Test(simulate, ring_gather)
{
    for (int n = 2; n <= 16; n++)
        for (int chunks = 1; chunks <= 4; chunks++) {
            tp_plan_costs costs = tpt_costs(1, 2);
            double end = 1.0 / n, pieces = (double)n * chunks;
            for (int k = 1; k <= (n - 1) * chunks; k++)
                end = fmax(end, 2 * k / pieces) + 1 / pieces;
            times ring = run(TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, n, chunks, costs);
            tpt_same(ring.seconds, end, "ring");
            tpt_same(ring.comm, 2.0 * (n - 1) / n, "ring's comm");
            tpt_same(run(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, n, chunks, costs).seconds, end, "pull");
        }
}

/* Any number of ranks and any ratio of link to GEMM: the longest of the GEMM, the link with one chunk's GEMM, and
 * peers' rows after the first chunk. */
Test(simulate, closed_form_of_pull)
{
    static const double links[] = {0.1, 0.4, 0.7, 1, 1.6, 4};
    for (int l = 0; l < 6; l++)
        for (int n = 2; n <= 8; n++)
            for (int chunks = 1; chunks <= 8; chunks++) {
                double part = (double)(n - 1) / n, comm = links[l] * part, all = (double)n * chunks;
                double expected = fmax(fmax(1, comm + 1 / all), part + comm / ((n - 1) * chunks));
                tpt_same(run(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, n, chunks, tpt_costs(1, links[l])).seconds,
                         expected, "gather");
                tpt_same(run(TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, n, chunks, tpt_costs(1, links[l])).seconds,
                         expected, "ring");
                tpt_same(run(TP_OVERLAP_PULL, TP_PATTERN_GEMM_SCATTER, n, chunks, tpt_costs(1, links[l])).seconds,
                         expected, "scatter");
            }
}

/* Link time = GEMM time, 5 us of latency under 10 ms, at most 16 chunks of the remote part: nine tenths can be hidden,
 * forward and backward. */
Test(simulate, nine_tenths_hidden)
{
    static const tp_pattern patterns[] = {TP_PATTERN_GATHER_GEMM, TP_PATTERN_GEMM_SCATTER, TP_PATTERN_BACKWARD,
                                          TP_PATTERN_CHAIN, TP_PATTERN_CHAIN_CORE};
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
        for (int n = 2; n <= 8; n *= 2) {
            double best = 0, part = (double)(n - 1) / n;
            tp_plan_costs costs = tpt_costs(0.010, 0.010 / part);
            costs.link.latency_seconds = 5e-6;
            costs.compute_seconds = 0.001;
            for (int algorithm = TP_OVERLAP_BULK; algorithm < TP_OVERLAP_AUTO; algorithm++)
                for (int chunks = 1; chunks * (n - 1) <= 16; chunks++)
                    best = fmax(best, run((tp_overlap)algorithm, patterns[p], n, chunks, costs).hidden);
            cr_assert(best >= 0.9, "%s on %d ranks: %g", tp_pattern_name(patterns[p]), n, best);
        }
}

/* c collectives: the first has nothing to hide under. */
Test(simulate, pipeline_of_two_stages)
{
    for (int n = 2; n <= 8; n *= 2)
        for (int chunks = 1; chunks <= 16; chunks++) {
            double comm = 2.0 * (n - 1) / n, longer = fmax(1, comm), shorter = fmin(1, comm);
            double expected = longer + shorter / chunks;
            tpt_same(run(TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, n, chunks, tpt_costs(1, 2)).seconds, expected,
                     "gather");
            tpt_same(run(TP_OVERLAP_PIPELINE, TP_PATTERN_GEMM_SCATTER, n, chunks, tpt_costs(1, 2)).seconds, expected,
                     "scatter");
        }
}

/* Backward: gather beside the input gradient, then reduction beside the weight gradient. */
Test(simulate, bulk_takes_the_longer)
{
    static const double links[] = {0.25, 1, 2, 5};
    for (int i = 0; i < 4; i++)
        for (int n = 2; n <= 8; n++) {
            tp_plan_costs costs = tpt_costs(1, links[i]);
            costs.gemm_seconds[1] = 1.5;
            double comm = links[i] * (n - 1) / n;
            /* the comm lane does gather, then scatter; the weight gradient needs the gather */
            double scatter = fmax(comm, 1) + comm, weight = fmax(comm, 1) + 1.5;
            times t = run(TP_OVERLAP_BULK, TP_PATTERN_BACKWARD, n, 1, costs);
            tpt_same(t.seconds, fmax(scatter, weight), "backward");
            times r = run(TP_OVERLAP_BULK, TP_PATTERN_BACKWARD_REDUCE, n, 1, costs);
            tpt_same(r.seconds, 1 + fmax(2 * comm, 1.5), "backward without sequence parallelism");
        }
}

/* direct: peers' rows stream through the GEMM that reads them; without a link it is the GEMM alone. */
Test(simulate, direct)
{
    tpt_same(run(TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, 2, 1, tpt_costs(1, 0)).seconds, 1, "no link");
    for (int chunks = 1; chunks <= 4; chunks++) {
        times t = run(TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, 2, chunks, tpt_costs(1, 2));
        tpt_same(t.seconds, 0.5 + 1, "own half, then the remote half at the link's speed");
        tpt_same(t.hidden, 0.5, "hidden");
        tpt_same(t.exposed, 0.5, "exposed");
    }
    tpt_same(run(TP_OVERLAP_DIRECT, TP_PATTERN_GEMM_SCATTER, 2, 1, tpt_costs(1, 2)).seconds, 2,
             "the reduction pays the link");
}

/* A latency is paid once by transfers that follow each other over a link, and by each collective, which all must have
 * come to. */
Test(simulate, latency)
{
    tp_plan_costs costs = tpt_costs(0, 2);
    costs.link.latency_seconds = 0.5;
    tpt_same(run(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 4, costs).seconds, 1 + 0.5, "pull");
    tpt_same(run(TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 2, 4, costs).seconds, 1 + 0.5, "ring");
    tpt_same(run(TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 2, 4, costs).seconds, 1 + 4 * 0.5, "pipeline");
}

typedef void (*each_plan)(const tp_plan *plan);

static void for_each_plan(int most_ranks, each_plan check)
{
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++)
        for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
            for (int ranks = 1; ranks <= most_ranks; ranks++)
                for (int chunks = 1; chunks <= 4; chunks++) {
                    tp_plan *plan = tpt_plan((tp_overlap)algorithm, (tp_pattern)pattern, ranks, chunks);
                    check(plan);
                    tp_plan_destroy(plan);
                }
}

/* Uneven costs, so that nothing meets by chance. */
static tp_plan_costs uneven(double link)
{
    tp_plan_costs costs = tpt_costs(1.1, link);
    costs.gemm_seconds[1] = 0.83;
    costs.compute_seconds = 0.29;
    costs.gemm_overhead[0] = costs.gemm_overhead[1] = 0.013;
    costs.compute_overhead = 0.007;
    costs.reduce_bytes_per_second = 3 * TPT_BYTES;
    costs.copy_bytes_per_second = 17 * TPT_BYTES;
    costs.transfer_overhead = 0.003;
    costs.wait_seconds = 0.002;
    costs.link.latency_seconds = 0.011;
    for (int i = 0; i < TP_BUFFERS; i++)
        costs.bytes[i] *= 1 + 0.07 * i;
    return costs;
}

/* No rank computes and communicates for longer than it takes, ops of a lane follow each other, and waits are kept. */
static void check_order(const tp_plan *plan)
{
    tp_plan_costs costs = uneven(0.9);
    tp_timeline *t = tpt_simulate(plan, &costs);
    for (int rank = 0; rank < plan->ranks; rank++) {
        double lane[TP_LANES] = {0}, issued = 0;
        for (int i = 0; i < plan->rank[rank].count; i++) {
            const tp_plan_op *op = &plan->rank[rank].op[i];
            const tp_span *span = &t->span[rank][i];
            cr_assert(span->begin >= lane[op->lane] && span->begin >= issued && span->end >= span->begin &&
                      span->end <= t->seconds);
            for (int w = 0; w < op->waits; w++)
                cr_assert(span->begin >= t->span[op->wait[w].rank][op->wait[w].op].end);
            lane[op->lane] = span->end;
            if (op->lane == TP_LANE_COMPUTE)
                issued = span->end;
        }
    }
    tp_timeline_destroy(t);
}

/* Nothing takes less than its GEMMs or its transfers alone, whatever takes longest of them: latency, copying, fixed
 * costs, seeing arrivals late. */
static void check_parts(const tp_plan *plan)
{
    tp_plan_costs costs[5];
    for (int i = 0; i < 5; i++)
        costs[i] = uneven(i == 1 ? 0 : 0.9);
    costs[2].link.latency_seconds = 0.37;
    costs[3].transfer_overhead = 0.19;
    costs[3].arrival_seconds = 0.23;
    costs[4].copy_bytes_per_second = 0.7 * TPT_BYTES;
    for (int i = 0; i < 5; i++) {
        tp_timeline *t = tpt_simulate(plan, &costs[i]);
        cr_assert(t->comm_seconds <= t->seconds * (1 + 1e-12) && t->gemm_seconds <= t->seconds * (1 + 1e-12) &&
                      t->hidden <= 1 + 1e-12,
                  "%s %s, %d ranks, %d chunks, costs %d: %g of %g s, hidden %g",
                  tp_overlap_name((tp_overlap)plan->algorithm), tp_pattern_name((tp_pattern)plan->pattern), plan->ranks,
                  plan->chunks, i, t->comm_seconds, t->seconds, t->hidden);
        tp_timeline_destroy(t);
    }
}

Test(simulate, nothing_is_faster_than_its_parts)
{
    for_each_plan(9, check_parts);
}

/* Latencies of copies overlap: a second of the link, and the last chunk's latency. Collectives wait for each other. */
Test(simulate, latencies_alone)
{
    for (int chunks = 1; chunks <= 16; chunks++) {
        tp_plan_costs costs = tpt_costs(1, 2);
        costs.link.latency_seconds = 0.125;
        tp_plan *pull = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, chunks),
                *pipeline = tpt_plan(TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 2, chunks);
        tp_timeline *t = tpt_simulate(pull, &costs);
        tpt_same(t->comm_seconds, 1.125, "pull");
        tp_timeline_destroy(t);
        t = tpt_simulate(pipeline, &costs);
        tpt_same(t->comm_seconds, 1 + chunks * 0.125, "pipeline");
        tp_timeline_destroy(t);
        tp_plan_destroy(pull);
        tp_plan_destroy(pipeline);
    }
}

Test(simulate, order_is_kept)
{
    for_each_plan(6, check_order);
}

/* A rank computes, or only communicates, or idles; no more can be hidden than there is. */
static void check_sums(const tp_plan *plan)
{
    tp_plan_costs costs = uneven(0.9);
    tp_timeline *t = tpt_simulate(plan, &costs);
    cr_assert(t->compute_seconds + t->exposed_seconds <= t->seconds * (1 + 1e-12));
    cr_assert(t->hidden <= 1 + 1e-12, "%s %s: hidden %g", tp_overlap_name((tp_overlap)plan->algorithm),
              tp_pattern_name((tp_pattern)plan->pattern), t->hidden);
    if (plan->algorithm == TP_OVERLAP_NONE && plan->ranks > 1) {
        tpt_same(t->compute_seconds + t->comm_seconds, t->seconds, "none: nothing overlaps");
        tpt_same(t->exposed_seconds, t->comm_seconds, "none: all is exposed");
    }
    int critical = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++)
            critical += t->critical[rank][i] && t->span[rank][i].end > t->span[rank][i].begin;
    cr_assert_eq(critical, t->critical_ops);
    tp_timeline_destroy(t);
}

Test(simulate, sums)
{
    for_each_plan(6, check_sums);
}

/* Without fixed costs a compute-bound plan that never idles: seconds = compute + exposed. */
Test(simulate, exposed_and_hidden_add_up)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_NONE, TP_OVERLAP_RING, TP_OVERLAP_PIPELINE, TP_OVERLAP_PULL};
    for (int a = 0; a < 4; a++)
        for (int n = 2; n <= 8; n++) {
            times t = run(algorithms[a], TP_PATTERN_GATHER_GEMM, n, 4, tpt_costs(1, 0.8));
            tpt_same(t.compute + t.exposed, t.seconds, "compute + exposed");
            tpt_same(t.exposed + t.hidden * fmin(t.compute, t.comm), t.comm, "exposed + hidden");
        }
}

static double seconds_of(const tp_plan *plan, const tp_plan_costs *costs)
{
    tp_timeline *t = tpt_simulate(plan, costs);
    double seconds = t->seconds;
    tp_timeline_destroy(t);
    return seconds;
}

/* With room for the order of transfers on a busy link to change: first come first served is not always best, so plans
 * whose transfers of several senders meet at one link are left out. */
static void check_monotone(const tp_plan *plan)
{
    if (plan->ranks > 2)
        return;
    double before = INFINITY;
    for (double link = 8; link > 0.01; link /= 2) {
        tp_plan_costs costs = uneven(link);
        double now = seconds_of(plan, &costs);
        cr_assert(now <= before + 1e-12, "%s %s %d chunks: a faster link takes %g, a slower %g",
                  tp_overlap_name((tp_overlap)plan->algorithm), tp_pattern_name((tp_pattern)plan->pattern),
                  plan->chunks, now, before);
        before = now;
        costs.gemm_seconds[0] *= 0.5;
        cr_assert(seconds_of(plan, &costs) <= now + 1e-12);
    }
}

Test(simulate, faster_is_never_slower)
{
    for_each_plan(2, check_monotone);
}

static void check_alone(const tp_plan *plan)
{
    if (plan->ranks > 1)
        return;
    tp_plan_costs costs = uneven(0.9);
    costs.copy_bytes_per_second = costs.reduce_bytes_per_second = 0;
    tp_timeline *t = tpt_simulate(plan, &costs);
    tpt_same(t->comm_seconds, 0, "comm of one rank");
    tpt_same(t->exposed_seconds, 0, "exposed of one rank");
    tp_timeline_destroy(t);
}

Test(simulate, one_rank_has_nothing_to_say)
{
    for_each_plan(1, check_alone);
}

Test(simulate, repeats)
{
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_CHAIN, 4, 4);
    tp_plan_costs costs = uneven(0.9);
    tp_timeline *a = tpt_simulate(plan, &costs), *b = tpt_simulate(plan, &costs);
    for (int rank = 0; rank < 4; rank++)
        cr_assert_eq(memcmp(a->span[rank], b->span[rank], (size_t)plan->rank[rank].count * sizeof(tp_span)), 0);
    tp_timeline_destroy(a);
    tp_timeline_destroy(b);
    tp_plan_destroy(plan);
}

/* What a run tells gives the same figures as the simulation that it repeats exactly. */
Test(simulate, measured_timeline)
{
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 4);
    tp_plan_costs costs = tpt_costs(1, 1.7);
    tp_timeline *simulated = tpt_simulate(plan, &costs), *measured = NULL;
    const tp_span *spans[2] = {simulated->span[0], simulated->span[1]};
    cr_assert_eq(tp_timeline_create(plan, spans, &measured), TP_OK);
    cr_assert(measured->measured && !simulated->measured);
    tpt_same(measured->seconds, simulated->seconds, "seconds");
    tpt_same(measured->compute_seconds, simulated->compute_seconds, "compute");
    tpt_same(measured->comm_seconds, simulated->comm_seconds, "comm");
    tpt_same(measured->exposed_seconds, simulated->exposed_seconds, "exposed");
    tpt_same(measured->hidden, simulated->hidden, "hidden");
    static const tp_span wrong[] = {{.begin = 1, .end = 0.5}, {.begin = -1, .end = 1}, {.begin = 0, .end = INFINITY}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tp_timeline *none;
        simulated->span[1][2] = wrong[i];
        cr_assert_eq(tp_timeline_create(plan, spans, &none), TP_ERR_ARGUMENT, "from %g to %g", wrong[i].begin,
                     wrong[i].end);
        cr_assert_null(none);
    }
    tp_timeline_destroy(measured);
    tp_timeline_destroy(simulated);
    tp_timeline_destroy(NULL);
    tp_plan_destroy(plan);
}

/* What a rank pulls comes, what it pushes goes: the busier direction counts. */
Test(simulate, measured_directions)
{
    tp_plan *plan;
    cr_assert_eq(tp_plan_parse("plan pull gather-gemm ranks 2 chunks 1\n"
                               "0: E; P 1 ~1 @copy reads 1:input[1] writes gathered[1]; "
                               "U 0 ~1 @comm reads input[0] writes 1:gathered[0]\n1: E\n",
                               &plan),
                 TP_OK);
    const tp_span first[] = {{0}, {.begin = 0, .end = 2}, {.begin = 0, .end = 3}}, second[1] = {{0}};
    const tp_span *spans[2] = {first, second};
    tp_timeline *measured;
    cr_assert_eq(tp_timeline_create(plan, spans, &measured), TP_OK, "%s", tp_last_message());
    tpt_same(measured->comm_seconds, 3, "comm");
    tpt_same(measured->exposed_seconds, 3, "exposed");
    tp_timeline_destroy(measured);
    tp_plan_destroy(plan);
}
