/* What the simulator charges besides work: waits, overheads of transfers, and links that are busy; each alone, in
 * closed form. */
#include "costs.h"

#include "plan/simulation.h"

#include <stdio.h>

static double seconds_of(const tp_plan *plan, const tp_plan_costs *costs)
{
    tp_timeline *timeline = tpt_simulate(plan, costs);
    double seconds = timeline->seconds;
    tp_timeline_destroy(timeline);
    return seconds;
}

static double generated(tp_overlap algorithm, tp_pattern pattern, int ranks, int chunks, const tp_plan_costs *costs)
{
    tp_plan *plan = tpt_plan(algorithm, pattern, ranks, chunks);
    double seconds = seconds_of(plan, costs);
    tp_plan_destroy(plan);
    return seconds;
}

static double written(const char *text, const tp_plan_costs *costs)
{
    tp_plan *plan;
    cr_assert_eq(tp_plan_parse(text, &plan), TP_OK, "%s", tp_last_message());
    double seconds = seconds_of(plan, costs);
    tp_plan_destroy(plan);
    return seconds;
}

/* Of one op of each rank, the first one on the lane. */
static double with_extra(tp_overlap algorithm, tp_lane lane, double seconds)
{
    enum { MOST_OPS = 64 };
    double extra[2][MOST_OPS] = {{0}};
    double *const rows[TP_PLAN_MAX_RANKS] = {extra[0], extra[1]};
    tp_plan *plan = tpt_plan(algorithm, TP_PATTERN_GATHER_GEMM, 2, 1);
    tp_plan_costs costs = tpt_costs(0, 2); /* the remote half crosses in 1 */
    tp_timeline *timeline = NULL;
    for (int rank = 0; rank < 2; rank++) {
        int first = 1; /* behind ENTER */
        while (plan->rank[rank].op[first].lane != lane)
            first++;
        cr_assert_lt(first, MOST_OPS);
        extra[rank][first] = seconds;
    }
    cr_assert_eq(tpi_plan_simulate(plan, &costs, rows, &timeline), TP_OK, "%s", tp_last_message());
    double total = timeline->seconds;
    tp_timeline_destroy(timeline);
    tp_plan_destroy(plan);
    return total;
}

/* What a lane pulls late crosses meanwhile, a collective only when all have come to it; what computes takes longer. */
Test(simulate_costs, lanes_that_begin_late)
{
    tpt_same(with_extra(TP_OVERLAP_PULL, TP_LANE_COPY, 0.25), 1, "a pull");
    tpt_same(with_extra(TP_OVERLAP_PULL, TP_LANE_COPY, 1.5), 1.5, "a pull that is looked at when it has crossed");
    tpt_same(with_extra(TP_OVERLAP_PIPELINE, TP_LANE_COMM, 0.25), 1.25, "a collective");
    tpt_same(with_extra(TP_OVERLAP_PULL, TP_LANE_COMPUTE, 0.25), 1, "own rows' product, under the transfer");
    tpt_same(with_extra(TP_OVERLAP_PIPELINE, TP_LANE_COMPUTE, 0.25), 1.25, "a product behind the transfer");
}

/* A lane that waits for another lane or rank sees its end `wait_seconds` late: the GEMM the last transfer, and the
 * first pull the peer's ENTER, which does not delay its crossing of a link. A message waits for its own rank only,
 * which has nothing to end before. */
Test(simulate_costs, waits)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_RING, TP_OVERLAP_PULL};
    for (int a = 0; a < 2; a++)
        for (int chunks = 1; chunks <= 4; chunks++) {
            tp_plan_costs costs = tpt_costs(0, 2);
            double without = generated(algorithms[a], TP_PATTERN_GATHER_GEMM, 2, chunks, &costs);
            costs.wait_seconds = 0.125;
            tpt_same(generated(algorithms[a], TP_PATTERN_GATHER_GEMM, 2, chunks, &costs), without + 0.125,
                     tp_overlap_name(algorithms[a]));
            costs = tpt_costs(0, 0);
            costs.copy_bytes_per_second = TPT_BYTES / 2;
            costs.wait_seconds = 0.125;
            tpt_same(generated(algorithms[a], TP_PATTERN_GATHER_GEMM, 2, chunks, &costs), 1 + (1 + a) * 0.125,
                     tp_overlap_name(algorithms[a]));
        }
}

/* A wait that is over when its op comes to it costs nothing, however little before: the peer's product takes 0.75, the
 * own one before it 1. One that ends just then is waited for. */
Test(simulate_costs, waits_that_are_over)
{
    static const char text[] = "plan direct gather-gemm ranks 2 chunks 1\n"
                               "0: E; G1 0 reads input[0] writes output[0]\n"
                               "1: E; G0 1 reads input[1] writes output[1]; G2 0 after 0.1 reads 0:input[0] writes "
                               "output[0]\n";
    tp_plan_costs costs = tpt_costs(2, 0);
    costs.wait_seconds = 0.5;
    costs.gemm_seconds[1] = 1.5;
    tpt_same(written(text, &costs), 1 + 1, "over before");
    costs.gemm_seconds[1] = 2;
    tpt_same(written(text, &costs), 1 + 0.5 + 1, "over then");
    costs.gemm_seconds[1] = 3;
    tpt_same(written(text, &costs), 1.5 + 0.5 + 1, "over later");
}

/* A wait for another rank is slept through where a lane beside compute takes part, but not one between ranks' compute,
 * nor one of a rank's own threads: they take turns on a core. So is each collective of such a lane, unless its bytes
 * cross a link for longer: they do so from when the last rank came. At the end compute waits for who still pulls out of
 * its memory. */
Test(simulate_costs, sleeping)
{
    static const struct {
        tp_overlap algorithm;
        tp_pattern pattern;
        int once, each;
        double link;
    } cases[] = {
        {TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 0, 0, 2},     {TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 1, 0, 2},
        {TP_OVERLAP_PULL, TP_PATTERN_GEMM_SCATTER, 2, 0, 0},    {TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 0, 0, 2},
        {TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 0, 1, 0}, {TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, 0, 0, 2},
        {TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 0, 0, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int chunks = 2; chunks <= 4; chunks++) {
            tp_plan_costs costs = tpt_costs(0, cases[i].link);
            costs.copy_bytes_per_second = cases[i].link > 0 ? 0 : TPT_BYTES / 2;
            double without = generated(cases[i].algorithm, cases[i].pattern, 2, chunks, &costs);
            costs.wake_seconds = 0.125;
            tpt_same(generated(cases[i].algorithm, cases[i].pattern, 2, chunks, &costs),
                     without + (cases[i].once + chunks * cases[i].each) * 0.125, tp_overlap_name(cases[i].algorithm));
        }
}

/* Who sleeps for an arrival sees it late: that holds up what needs it, so that compute which reads peers' memory sleeps
 * each time, but no later crossing. A collective of two steps is slept for once. */
Test(simulate_costs, arrivals_seen_late)
{
    static const struct {
        tp_overlap algorithm;
        tp_pattern pattern;
        int once, each;
    } cases[] = {{TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 1, 0},     {TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 1, 0},
                 {TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, 0, 1},   {TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 1, 0},
                 {TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 1, 0}, {TP_OVERLAP_NONE, TP_PATTERN_GEMM_REDUCE, 1, 0},
                 {TP_OVERLAP_PIPELINE, TP_PATTERN_GEMM_REDUCE, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int chunks = 1; chunks <= 4; chunks++) {
            tp_plan_costs costs = tpt_costs(0, 2);
            double without = generated(cases[i].algorithm, cases[i].pattern, 2, chunks, &costs);
            costs.arrival_seconds = 0.125;
            tpt_same(generated(cases[i].algorithm, cases[i].pattern, 2, chunks, &costs),
                     without + (cases[i].once + chunks * cases[i].each) * 0.125, tp_overlap_name(cases[i].algorithm));
        }
}

/* Nobody waits where everything is on one lane. */
Test(simulate_costs, lane_order_is_no_wait)
{
    tp_plan_costs costs = tpt_costs(1, 0);
    costs.wait_seconds = 0.125;
    tpt_same(generated(TP_OVERLAP_NONE, TP_PATTERN_GEMM, 1, 4, &costs), 1, "one rank");
}

/* Each transfer of a lane pays the overhead, after its bytes: beside the next one's on a link, before the next one's
 * copying. */
Test(simulate_costs, overhead_of_transfers)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_PULL, TP_OVERLAP_RING};
    for (int a = 0; a < 2; a++)
        for (int chunks = 1; chunks <= 4; chunks++) {
            tp_plan_costs costs = tpt_costs(0, 2);
            costs.transfer_overhead = 0.0625;
            tpt_same(generated(algorithms[a], TP_PATTERN_GATHER_GEMM, 2, chunks, &costs), 1 + 0.0625,
                     tp_overlap_name(algorithms[a]));
            costs.link.bytes_per_second = 0;
            costs.copy_bytes_per_second = TPT_BYTES / 2;
            tpt_same(generated(algorithms[a], TP_PATTERN_GATHER_GEMM, 2, chunks, &costs), 1 + chunks * 0.0625,
                     tp_overlap_name(algorithms[a]));
        }
}

/* Three pieces to a buffer, a second each over the link. */
Test(simulate_costs, a_link_serves_one_transfer_at_a_time)
{
    const tp_plan_costs costs = tpt_costs(0, 3);
    tpt_same(written("plan pull gather-gemm ranks 3 chunks 1\n"
                     "0: E\n"
                     "1: E; U 1 ~0 @copy reads input[1] writes 0:gathered[1]\n"
                     "2: E; U 2 ~0 @copy reads input[2] writes 0:gathered[2]\n",
                     &costs),
             2, "two senders to one receiver");
    tpt_same(written("plan pull gather-gemm ranks 3 chunks 1\n"
                     "0: E\n"
                     "1: E; P 0 ~0 @copy reads 0:input[0] writes gathered[0]\n"
                     "2: E; P 0 ~0 @copy reads 0:input[0] writes gathered[0]\n",
                     &costs),
             2, "one sender to two receivers");
    tpt_same(written("plan pull gather-gemm ranks 3 chunks 1\n"
                     "0: E\n"
                     "1: E; P 0 ~0 @copy reads 0:input[0] writes gathered[0]\n"
                     "2: E; P 1 ~1 @copy reads 1:input[1] writes gathered[1]\n",
                     &costs),
             1, "two pairs: a rank sends while it receives");
    tpt_same(written("plan direct gather-gemm ranks 3 chunks 1\n"
                     "0: E; R 0 reads 1:partial[0], 2:partial[0] writes output[0]\n"
                     "1: E\n"
                     "2: E\n",
                     &costs),
             2, "an op that reads from two peers");
}

/* An op beside compute takes its lane's thread a while, however little it moves: many small ones take that each, long
 * ones no more than they move. */
Test(simulate_costs, lanes_take_their_time)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_RING, TP_OVERLAP_PULL, TP_OVERLAP_PIPELINE};
    for (int a = 0; a < 3; a++) {
        tp_plan_costs costs = {.lane_seconds = 0.5};
        costs.bytes[TP_BUFFER_INPUT] = TPT_BYTES;
        tpt_same(generated(algorithms[a], TP_PATTERN_GATHER_GEMM, 2, 4, &costs), 4 * 0.5,
                 tp_overlap_name(algorithms[a]));
        tpt_same(generated(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 2, 1, &costs), 0, "on the compute lane");
        costs.link.bytes_per_second = TPT_BYTES / 8; /* 4 s for the remote half */
        tpt_same(generated(algorithms[a], TP_PATTERN_GATHER_GEMM, 2, 4, &costs), 4, tp_overlap_name(algorithms[a]));
    }
}

/* A PULL crosses from when its data is there, although compute issues it later: results of the first chunk follow the
 * second chunk's partial sums on the link. */
Test(simulate_costs, pulls_cross_when_their_data_is_there)
{
    tp_plan_costs costs = {.link = {0.25, 1e6}};
    costs.bytes[TP_BUFFER_PARTIAL] = 4e6;
    costs.bytes[TP_BUFFER_OUTPUT] = 2e6;
    double seconds = generated(TP_OVERLAP_PULL, TP_PATTERN_GEMM_REDUCE, 2, 2, &costs);
    tpt_same(seconds, 2 * 1 + 2 * 0.5 + 0.25, "two chunks of sums, two of results, the last one's latency");
}

/* What both sides move crosses from when the later one has posted it, whichever that is; nobody posts before what is
 * issued ahead of it has been computed, but for a PULL that waits for its data. A product of one rank's rows takes 1,
 * and so do they on the link. */
Test(simulate_costs, both_sides_post)
{
    static const char *const late[] = {
        "0: E; G0 0 reads input[0] writes output[0]; C 0x2 all-gather @comm after 1 reads input[0] writes "
        "gathered[0x2]\n"
        "1: E; C 0x2 all-gather @comm after 0 reads input[1] writes gathered[0x2]\n",
        "0: E; C 0x2 all-gather @comm after 0 reads input[0] writes gathered[0x2]\n"
        "1: E; G0 1 reads input[1] writes output[1]; C 0x2 all-gather @comm after 1 reads input[1] writes "
        "gathered[0x2]\n",
        "0: E; G0 0 reads input[0] writes output[0]; S 0 ~1 @comm after 1 reads input[0]\n"
        "1: E; V 0 ~0 @copy after 0 writes gathered[0]\n",
        "0: E; S 0 ~1 @comm after 0 reads input[0]\n"
        "1: E; G0 1 reads input[1] writes output[1]; V 0 ~0 @copy after 1 writes gathered[0]\n",
        "0: E; G0 0 reads input[0] writes output[0]; S 0 ~1 @comm after 0 reads input[0]\n"
        "1: E; V 0 ~0 @copy after 0 writes gathered[0]\n",
        "0: E\n"
        "1: E; G0 1 reads input[1] writes output[1]; P 0 ~0 @copy reads 0:input[0] writes gathered[0]\n",
    };
    const tp_plan_costs costs = tpt_costs(2, 2);
    for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
        char text[512];
        snprintf(text, sizeof text, "plan pipeline gather-gemm ranks 2 chunks 1\n%s", late[i]);
        tpt_same(written(text, &costs), 2, late[i]);
    }
    tpt_same(
        written(
            "plan pull gather-gemm ranks 2 chunks 1\n"
            "0: E\n"
            "1: E; G0 1 reads input[1] writes output[1]; P 0 ~0 @copy after 0.0 reads 0:input[0] writes gathered[0]\n",
            &costs),
        1, "a PULL of what was there");
}

/* Communication alone, of a rank that only sends and of one that only receives: what crosses, its latency, and seeing
 * it; a receiver's overhead is behind that. */
Test(simulate_costs, one_way_alone)
{
    static const struct {
        const char *text;
        double seconds, alone;
    } cases[] = {
        {"plan pull gather-gemm ranks 2 chunks 1\n0: E; U 0 ~1 @copy reads input[0] writes 1:gathered[0]\n1: E\n",
         1 + 0.375 + 0.0625, 1 + 0.375},
        {"plan pull gather-gemm ranks 2 chunks 1\n0: E; U 0 ~1 @copy reads input[0] writes 1:gathered[0]\n"
         "1: E; G0 1 reads input[1] writes output[1]\n",
         2, 1 + 0.375}, /* of who is pushed to, and does nothing for it */
        {"plan pull gather-gemm ranks 2 chunks 1\n0: E\n1: E; P 0 ~0 @copy reads 0:input[0] writes gathered[0]\n",
         1 + 0.375 + 0.0625, 1 + 0.375 + 0.0625}};
    tp_plan_costs costs = tpt_costs(4, 2);
    costs.link.latency_seconds = 0.25;
    costs.arrival_seconds = 0.125;
    costs.transfer_overhead = 0.0625;
    for (int i = 0; i < 3; i++) {
        tp_plan *plan;
        cr_assert_eq(tp_plan_parse(cases[i].text, &plan), TP_OK, "%s", tp_last_message());
        tp_timeline *timeline = tpt_simulate(plan, &costs);
        tpt_same(timeline->seconds, cases[i].seconds, "seconds");
        tpt_same(timeline->comm_seconds, cases[i].alone, "alone");
        tp_timeline_destroy(timeline);
        tp_plan_destroy(plan);
    }
}

/* Where memory is shared, what a rank copies out of a message is its communication. */
Test(simulate_costs, a_receiver_copies)
{
    tp_plan *plan;
    tp_plan_costs costs = tpt_costs(4, 0);
    costs.copy_bytes_per_second = TPT_BYTES;
    cr_assert_eq(tp_plan_parse("plan ring gather-gemm ranks 2 chunks 1\n0: E; S 0 ~1 @comm reads input[0]\n"
                               "1: E; V 0 ~0 @copy writes gathered[0]; G0 1 reads input[1] writes output[1]\n",
                               &plan),
                 TP_OK, "%s", tp_last_message());
    tp_timeline *timeline = tpt_simulate(plan, &costs);
    cr_assert_eq(timeline->rank, 1);
    tpt_same(timeline->comm_seconds, 0.5, "alone");
    tp_timeline_destroy(timeline);
    tp_plan_destroy(plan);
}

/* One after the other, everything is waited for, also what takes no time. */
Test(simulate_costs, all_of_none_is_critical)
{
    tp_plan *plan = tpt_plan(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 2, 1);
    for (int link = 0; link < 2; link++) {
        const tp_plan_costs costs = tpt_costs(4, link);
        tp_timeline *timeline = tpt_simulate(plan, &costs);
        for (int i = 0; i < plan->rank[timeline->rank].count; i++)
            cr_assert(timeline->critical[timeline->rank][i], "op %d, link %d", i, link);
        cr_assert_eq(timeline->critical_ops, 1 + link);
        tp_timeline_destroy(timeline);
    }
    tp_plan_destroy(plan);
}

/* Measured: what enter and leave wait is neither computing nor communicating. */
Test(simulate_costs, borders_of_a_run)
{
    static const tp_span run[] = {
        {.begin = 0, .end = 1}, {.begin = 1, .end = 2}, {.begin = 2, .end = 4}, {.begin = 4, .end = 7}};
    static const tp_span *const spans[] = {run, run};
    tp_plan *plan = tpt_plan(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 2, 1);
    tp_timeline *timeline;
    cr_assert_eq(plan->rank[0].count, 4);
    cr_assert_eq(tp_timeline_create(plan, spans, &timeline), TP_OK, "%s", tp_last_message());
    tpt_same(timeline->seconds, 7, "seconds");
    tpt_same(timeline->compute_seconds, 2, "compute");
    tpt_same(timeline->exposed_seconds, 1, "exposed");
    tp_timeline_destroy(timeline);
    tp_plan_destroy(plan);
}

/* Collectives of one lane, alone: each begins when the one before has arrived, an all-reduce after two steps. */
Test(simulate_costs, collectives_alone)
{
    static const struct {
        tp_pattern pattern;
        double crossing; /* of the whole, each way */
        int steps;
    } cases[] = {
        {TP_PATTERN_GATHER_GEMM, 1, 1}, {TP_PATTERN_GEMM_SCATTER, 1, 1}, {TP_PATTERN_GEMM_REDUCE, 2, 2}};
    tp_plan_costs costs = tpt_costs(1, 2);
    costs.link.latency_seconds = 0.125;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int chunks = 1; chunks <= 4; chunks++) {
            tp_plan *plan = tpt_plan(TP_OVERLAP_PIPELINE, cases[i].pattern, 2, chunks);
            tp_timeline *timeline = tpt_simulate(plan, &costs);
            tpt_same(timeline->comm_seconds, cases[i].crossing + chunks * cases[i].steps * 0.125,
                     tp_pattern_name(cases[i].pattern));
            tp_timeline_destroy(timeline);
            tp_plan_destroy(plan);
        }
}

/* Where nothing travels a rank's own pieces are all there are, also of several ranks. */
Test(simulate_costs, without_peers)
{
    tp_plan_costs costs = tpt_costs(1, 2);
    for (int ranks = 1; ranks <= 3; ranks++)
        tpt_same(generated(TP_OVERLAP_NONE, TP_PATTERN_GEMM, ranks, 2, &costs), 1, "a product of own rows");
}

/* A copy reads and writes at the rate of copies. */
Test(simulate_costs, copies_within_a_rank)
{
    tp_plan_costs costs = tpt_costs(0, 0);
    costs.copy_bytes_per_second = TPT_BYTES / 4;
    costs.compute_overhead = 0.125;
    tpt_same(written("plan pull gather-gemm ranks 2 chunks 1\n"
                     "0: E; Y 0 reads input[0] writes gathered[0]\n"
                     "1: E\n",
                     &costs),
             2 + 0.125, "half of a buffer");
}

/* Uncut, each GEMM and the compute between them is one call, with what that costs. */
Test(simulate_costs, calls_of_uncut_work)
{
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_CHAIN, 2, 4);
    tp_plan_costs costs = tpt_costs(1, 2);
    costs.compute_seconds = 0.5;
    costs.compute_overhead = 0.25;
    costs.gemm_overhead[0] = 0.125;
    costs.gemm_overhead[1] = 0.0625;
    tp_timeline *timeline = tpt_simulate(plan, &costs);
    tpt_same(timeline->gemm_seconds, 1 + 0.125 + 0.5 + 0.25 + 1 + 0.0625, "uncut");
    tp_timeline_destroy(timeline);
    tp_plan_destroy(plan);
}
