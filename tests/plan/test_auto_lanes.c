/* What lanes without a core of their own add to a plan's time: starting them, switching to their ops, what they copy,
 * and waking up. */
#include "auto_case.h"

#include "plan/auto.h"

/* GEMMs of 20 ms, 1 ms an op of a lane and 5 ms for starting one. */
static tp_machine shared(double link)
{
    tp_machine machine = ideal(link);
    machine.lanes_share_cores = true;
    machine.lane_seconds = 1e-3;
    machine.start_seconds = 5e-3;
    return machine;
}

/* Lanes take the time of what their rank computes when one of their ops ends, and for their start of the first op;
 * where the core waits anyway, nothing. */
Test(auto_lanes, take_time)
{
    tp_machine machine = shared(0);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    tp_overlap_candidate at = predicted(&machine, &shape, TP_OVERLAP_PULL, 4);
    tpt_same(at.seconds, 0.020 + 4 * 1e-3 + 5e-3, "four pulls on one lane");
    tpt_same(at.gemm_seconds, 0.020, "the GEMM");
    tpt_same(predicted(&machine, &shape, TP_OVERLAP_NONE, 1).seconds, 0.020, "no lanes");
    machine.link.bytes_per_second = even_link / 10; /* 200 ms: what is left is the last chunk's GEMM; own rows are
                                                     * multiplied meanwhile, 5 ms longer */
    at = predicted(&machine, &shape, TP_OVERLAP_PULL, 4);
    tpt_same(at.seconds, 0.200 + 0.020 / 8, "waiting for the link");
    tpt_same(at.lane_seconds, 5e-3, "the start");
    machine.link.bytes_per_second = even_link * 10; /* 2 ms, under the own rows' GEMM */
    tpt_same(predicted(&machine, &shape, TP_OVERLAP_PULL, 4).seconds, 0.020 + 4 * 1e-3 + 5e-3, "a quick link");
    machine.link.bytes_per_second = even_link / 10;
    machine.lanes_share_cores = false;
    tpt_same(predicted(&machine, &shape, TP_OVERLAP_PULL, 4).seconds, 0.200 + 0.020 / 8, "cores of their own");
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 4);
    cr_assert_eq(tp_overlap_predict(&machine, &shape, plan, NULL), TP_ERR_ARGUMENT);
    tp_plan_destroy(plan);
}

/* Who has none needs none to be started. */
Test(auto_lanes, are_used_or_not)
{
    static const tp_overlap with[] = {TP_OVERLAP_BULK, TP_OVERLAP_RING, TP_OVERLAP_PIPELINE, TP_OVERLAP_PULL},
                            without[] = {TP_OVERLAP_NONE, TP_OVERLAP_DIRECT};
    for (int i = 0; i < 4; i++) {
        tp_plan *plan = tpt_plan(with[i], TP_PATTERN_BACKWARD, 2, 1);
        cr_assert(tpi_plan_uses_lanes(plan), "%s", tp_overlap_name(with[i]));
        tp_plan_destroy(plan);
    }
    for (int i = 0; i < 2; i++) {
        tp_plan *plan = tpt_plan(without[i], TP_PATTERN_BACKWARD, 2, 1);
        cr_assert(!tpi_plan_uses_lanes(plan), "%s", tp_overlap_name(without[i]));
        tp_plan_destroy(plan);
    }
}

/* Everything that compute does gets longer: what its calls cost, and what lies between GEMMs. */
Test(auto_lanes, take_from_all_that_computes)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_CHAIN, 2, 1000);
    shape.compute_flops = 1e9; /* 10 ms */
    machine.call_seconds = 1e-4;
    double alone = predicted(&machine, &shape, TP_OVERLAP_PULL, 4).seconds;
    machine = shared(0);
    machine.call_seconds = 1e-4;
    tp_overlap_candidate beside = predicted(&machine, &shape, TP_OVERLAP_PULL, 4);
    tpt_same(beside.lane_seconds, 8 * 1e-3 + 5e-3, "four chunks in, four out");
    tpt_same(beside.seconds - alone, 8 * 1e-3 + 5e-3, "what is taken");
}

/* What is taken makes compute longer, so that an op ends beside it which ended behind it before: own rows take 10 ms
 * and a start of 5, and a chunk arrives after 12. */
Test(auto_lanes, find_compute_that_they_made_longer)
{
    tp_machine machine = shared(even_link * 20 / 12);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    tp_overlap_candidate at = predicted(&machine, &shape, TP_OVERLAP_PULL, 1);
    tpt_same(at.lane_seconds, 5e-3 + 1e-3, "the start and the pull");
    tpt_same(at.seconds, 0.020 + 5e-3 + 1e-3, "seconds");
}

/* An op that no GEMM waits for may run when compute is through, without a switch: half of one is counted, and a whole
 * one for a lane's last op, which holds up the plan's end instead. Those before one that is waited for run with it. An
 * op that compute waits for, as a pipeline's first gather, or that ends when compute has, switches nothing. */
Test(auto_lanes, only_awaited_and_last_ops_switch)
{
    static const struct {
        tp_overlap algorithm;
        tp_pattern pattern;
        int chunks;
        double ops;
        int lanes;
    } cases[] = {{TP_OVERLAP_PIPELINE, TP_PATTERN_GEMM_REDUCE, 4, 1.5, 1},
                 {TP_OVERLAP_PIPELINE, TP_PATTERN_CHAIN_REDUCE, 4, 1.5, 1},
                 {TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 4, 3, 0},
                 {TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 4, 4, 1},
                 {TP_OVERLAP_PULL, TP_PATTERN_GEMM_SCATTER, 4, 4, 1},
                 {TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, 4, 0, 0},
                 {TP_OVERLAP_BULK, TP_PATTERN_BACKWARD_REDUCE, 1, 1, 1},
                 {TP_OVERLAP_PIPELINE, TP_PATTERN_BACKWARD_REDUCE, 4, 2.5, 1},
                 {TP_OVERLAP_BULK, TP_PATTERN_BACKWARD, 1, 2, 1}};
    tp_machine machine = shared(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_overlap_shape shape = linear(cases[i].pattern, 2, 1000);
        tp_overlap_candidate at = predicted(&machine, &shape, cases[i].algorithm, cases[i].chunks);
        tpt_same(at.lane_seconds, cases[i].ops * 1e-3 + cases[i].lanes * 5e-3, tp_pattern_name(cases[i].pattern));
    }
}

/* A lane's start keeps its first op waiting where compute waits for it, and takes nothing from what compute does. What
 * a collective moves leaves no earlier. */
Test(auto_lanes, a_start_is_waited_for)
{
    static const double links[] = {even_link, even_link / 4};
    for (int i = 0; i < 2; i++)
        for (int chunks = 1; chunks <= 4; chunks *= 2) {
            tp_machine machine = shared(links[i]);
            tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
            machine.lane_seconds = machine.start_seconds = 0;
            double without = predicted(&machine, &shape, TP_OVERLAP_PIPELINE, chunks).seconds;
            machine.start_seconds = 5e-3;
            tp_overlap_candidate with = predicted(&machine, &shape, TP_OVERLAP_PIPELINE, chunks);
            tpt_same(with.seconds, without + 5e-3, "late");
            tpt_same(with.lane_seconds, 0, "nothing is taken");
        }
}

/* What lanes copy: nothing before the GEMM, which waits for a gather; a message once, by who receives it. */
Test(auto_lanes, copy)
{
    static const struct {
        tp_overlap algorithm;
        double seconds;
    } cases[] = {{TP_OVERLAP_PIPELINE, 0}, {TP_OVERLAP_PULL, 2e-3}, {TP_OVERLAP_RING, 2e-3}, {TP_OVERLAP_DIRECT, 0},
    {TP_OVERLAP_NONE, 0}};
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000); /* 4 MB */
    machine.lanes_share_cores = true;
    machine.copy_bytes_per_second = 1e9;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tpt_same(predicted(&machine, &shape, cases[i].algorithm, 1).lane_seconds, cases[i].seconds,
                 tp_overlap_name(cases[i].algorithm));
}

/* A collective beside compute has a figure of its own; without one it is an op like others. What it copies and adds is
 * taken besides. */
Test(auto_lanes, collectives_meet)
{
    tp_machine machine = shared(0);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    machine.start_seconds = 0;
    tpt_same(predicted(&machine, &shape, TP_OVERLAP_PIPELINE, 4).lane_seconds, 3e-3,
             "not measured; compute waits for the first one");
    machine.meet_seconds = 3e-3;
    tpt_same(predicted(&machine, &shape, TP_OVERLAP_PIPELINE, 4).lane_seconds, 9e-3, "three of them");
    tpt_same(predicted(&machine, &shape, TP_OVERLAP_PULL, 4).lane_seconds, 4e-3, "pulls are none");
    machine.copy_bytes_per_second = 1e10; /* 1 MB a chunk of both ranks */
    tpt_same(predicted(&machine, &shape, TP_OVERLAP_PIPELINE, 4).lane_seconds, 9e-3 + 3 * 1e-4, "and copy");
    shape = linear(TP_PATTERN_BACKWARD_REDUCE, 2, 1000);
    machine.reduce_bytes_per_second = 1e10; /* 4 MB of partial sums, and as much of sums */
    tpt_same(predicted(&machine, &shape, TP_OVERLAP_BULK, 1).lane_seconds, 3e-3 + 8e-4, "and add");
}

/* Threads that share cores sleep where they wait for each other. */
Test(auto_lanes, wake_late)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    machine.wake_seconds = 3e-5;
    tpt_same(costs_of(&machine, &shape, TP_OVERLAP_PULL, 1).wake_seconds, 0, "cores of their own");
    machine.lanes_share_cores = true;
    tpt_same(costs_of(&machine, &shape, TP_OVERLAP_PULL, 1).wake_seconds, 3e-5, "shared cores");
}

/* Who sleeps for a modelled link wakes late; without one nobody sleeps. */
Test(auto_lanes, waking_up_is_latency)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    machine.wake_seconds = 3e-3;
    tpt_same(predicted(&machine, &shape, TP_OVERLAP_NONE, 1).seconds, 0.020, "no link");
    machine.link = (tp_link){2e-3, even_link};
    tpt_same(predicted(&machine, &shape, TP_OVERLAP_NONE, 1).seconds, 0.040 + 2e-3 + 3e-3, "a link");
}
