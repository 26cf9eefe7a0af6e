/* From a machine's figures and a shape to costs and predictions. */
#include "auto_case.h"

#include <string.h>

Test(auto_costs, costs_of_a_shape)
{
    tp_machine machine = ideal(even_link);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 512);
    tp_plan_costs costs;
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 4);
    cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_OK);
    tpt_same(costs.gemm_seconds[0], 512 * 2e6 / 1e11, "gemm");
    tpt_same(costs.gemm_overhead[0], 0, "overhead");
    tpt_same(costs.bytes[TP_BUFFER_INPUT], 512 * 4000, "input");
    /* a curve: 10 rows take as long as 100; between points times are linear */
    machine.gemm[TP_DTYPE_F32].points = 2;
    machine.gemm[TP_DTYPE_F32].rows[0] = 10;
    machine.gemm[TP_DTYPE_F32].flops[0] = 1e10;
    machine.gemm[TP_DTYPE_F32].rows[1] = 100;
    machine.gemm[TP_DTYPE_F32].flops[1] = 1e11;
    shape.rows = 80;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_OK);
    tpt_same(costs.gemm_seconds[0], 100 * 2e6 / 1e11, "gemm at 80 rows");
    tpt_same(costs.gemm_overhead[0], 4 * 100 * 2e6 / 1e11 / 5, "own 40 rows and four chunks of 10 cost as much as 80 each");
    shape.ranks = 3;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "gather-gemm on 2 ranks") != NULL, "%s", tp_last_message());
    tp_plan_destroy(plan);
}

/* Lanes that share the compute thread's core take the time of what it computes when one of their ops ends, and for their start of the first op; where the core waits
 * anyway, nothing. */
Test(auto_costs, lanes_on_shared_cores_cost_time)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    tp_plan *pull = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 4), *none = tpt_plan(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 2, 1);
    tp_overlap_candidate at;
    machine.lanes_share_cores = true;
    machine.lane_seconds = 1e-3;
    machine.start_seconds = 5e-3;
    cr_assert_eq(tp_overlap_predict(&machine, &shape, pull, &at), TP_OK, "%s", tp_last_message());
    tpt_same(at.seconds, 0.020 + 4 * 1e-3 + 5e-3, "four pulls on one lane");
    tpt_same(at.gemm_seconds, 0.020, "the GEMM");
    cr_assert(at.algorithm == TP_OVERLAP_PULL && at.chunks == 4);
    cr_assert_eq(tp_overlap_predict(&machine, &shape, none, &at), TP_OK);
    tpt_same(at.seconds, 0.020, "no lanes");
    machine.link.bytes_per_second = even_link / 10; /* 200 ms: what is left is the last chunk's GEMM; own rows are multiplied meanwhile, 5 ms longer */
    cr_assert_eq(tp_overlap_predict(&machine, &shape, pull, &at), TP_OK);
    tpt_same(at.seconds, 0.200 + 0.020 / 8, "waiting for the link");
    tpt_same(at.lane_seconds, 5e-3, "the start");
    machine.link.bytes_per_second = even_link * 10; /* 2 ms, under the own rows' GEMM */
    cr_assert_eq(tp_overlap_predict(&machine, &shape, pull, &at), TP_OK);
    tpt_same(at.seconds, 0.020 + 4 * 1e-3 + 5e-3, "a quick link");
    machine.link.bytes_per_second = even_link / 10;
    machine.lanes_share_cores = false;
    cr_assert_eq(tp_overlap_predict(&machine, &shape, pull, &at), TP_OK);
    tpt_same(at.seconds, 0.200 + 0.020 / 8, "cores of their own");
    cr_assert_eq(tp_overlap_predict(&machine, &shape, pull, NULL), TP_ERR_ARGUMENT);
    tp_plan_destroy(pull);
    tp_plan_destroy(none);
}

/* Everything that compute does gets longer: what its calls cost, and what lies between GEMMs. */
Test(auto_costs, lanes_take_from_all_that_computes)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_CHAIN, 2, 1000);
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_CHAIN, 2, 4);
    tp_overlap_candidate alone, beside;
    shape.compute_flops = 1e9; /* 10 ms */
    machine.call_seconds = 1e-4;
    cr_assert_eq(tp_overlap_predict(&machine, &shape, plan, &alone), TP_OK, "%s", tp_last_message());
    machine.lanes_share_cores = true;
    machine.lane_seconds = 1e-3;
    machine.start_seconds = 5e-3;
    cr_assert_eq(tp_overlap_predict(&machine, &shape, plan, &beside), TP_OK);
    tpt_same(beside.lane_seconds, 8 * 1e-3 + 5e-3, "four chunks in, four out");
    tpt_same(beside.seconds - alone.seconds, 8 * 1e-3 + 5e-3, "what is taken");
    tp_plan_destroy(plan);
}

/* An op that no GEMM waits for may run when compute is through, without a switch: half of one is counted. Those before one that is waited for run with it. An op that
 * compute waits for, as a pipeline's first gather, or that ends when compute has, switches nothing. */
Test(auto_costs, only_awaited_ops_switch)
{
    static const struct {
        tp_overlap algorithm;
        tp_pattern pattern;
        double ops;
        int lanes;
    } cases[] = {{TP_OVERLAP_PIPELINE, TP_PATTERN_GEMM_REDUCE, 1.5, 1}, {TP_OVERLAP_PIPELINE, TP_PATTERN_CHAIN_REDUCE, 1.5, 1}, {TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 3, 0},
                 {TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 4, 1}, {TP_OVERLAP_PULL, TP_PATTERN_GEMM_SCATTER, 4, 1}, {TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, 0, 0}};
    tp_machine machine = ideal(0);
    machine.lanes_share_cores = true;
    machine.lane_seconds = 1e-3;
    machine.start_seconds = 5e-3;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_overlap_shape shape = linear(cases[i].pattern, 2, 1000);
        tp_plan *plan = tpt_plan(cases[i].algorithm, cases[i].pattern, 2, 4);
        tp_overlap_candidate at;
        cr_assert_eq(tp_overlap_predict(&machine, &shape, plan, &at), TP_OK, "%s", tp_last_message());
        tpt_same(at.lane_seconds, cases[i].ops * 1e-3 + cases[i].lanes * 5e-3, tp_overlap_name(cases[i].algorithm));
        tp_plan_destroy(plan);
    }
}

/* A lane's start keeps its first op waiting where compute waits for it, and takes nothing from what compute does. What a collective moves leaves no earlier. */
Test(auto_costs, a_start_is_waited_for)
{
    static const double links[] = {even_link, even_link / 4};
    for (int i = 0; i < 2; i++)
        for (int chunks = 1; chunks <= 4; chunks *= 2) {
            tp_machine machine = ideal(links[i]);
            machine.lanes_share_cores = true;
            tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
            tp_plan *plan = tpt_plan(TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 2, chunks);
            tp_overlap_candidate without, with;
            cr_assert_eq(tp_overlap_predict(&machine, &shape, plan, &without), TP_OK, "%s", tp_last_message());
            machine.start_seconds = 5e-3;
            cr_assert_eq(tp_overlap_predict(&machine, &shape, plan, &with), TP_OK);
            tpt_same(with.seconds, without.seconds + 5e-3, "late");
            tpt_same(with.lane_seconds, 0, "nothing is taken");
            tp_plan_destroy(plan);
        }
}

/* What lanes copy: nothing before the GEMM, which waits for a gather; a message once, by who receives it. */
Test(auto_costs, lanes_copy)
{
    static const struct {
        tp_overlap algorithm;
        double seconds;
    } cases[] = {{TP_OVERLAP_PIPELINE, 0}, {TP_OVERLAP_PULL, 2e-3}, {TP_OVERLAP_RING, 2e-3}, {TP_OVERLAP_DIRECT, 0}, {TP_OVERLAP_NONE, 0}};
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000); /* 4 MB */
    machine.lanes_share_cores = true;
    machine.copy_bytes_per_second = 1e9;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_plan *plan = tpt_plan(cases[i].algorithm, TP_PATTERN_GATHER_GEMM, 2, 1);
        tp_overlap_candidate at;
        cr_assert_eq(tp_overlap_predict(&machine, &shape, plan, &at), TP_OK, "%s", tp_last_message());
        tpt_same(at.lane_seconds, cases[i].seconds, tp_overlap_name(cases[i].algorithm));
        tp_plan_destroy(plan);
    }
}

/* GEMMs that read peers' memory under direct, by pattern. */
Test(auto_costs, direct_slows_what_reads_peers)
{
    static const struct {
        tp_pattern pattern;
        unsigned parts;
    } cases[] = {{TP_PATTERN_GATHER_GEMM, 1},    {TP_PATTERN_GEMM_SCATTER, 0},          {TP_PATTERN_GEMM_REDUCE, 0},
                 {TP_PATTERN_GATHER_WEIGHT, 1},  {TP_PATTERN_BACKWARD, 2},              {TP_PATTERN_BACKWARD_REDUCE, 0},
                 {TP_PATTERN_ROW_BACKWARD, 3},   {TP_PATTERN_CHAIN, 1},                 {TP_PATTERN_CHAIN_REDUCE, 0},
                 {TP_PATTERN_CHAIN_CORE, 1},     {TP_PATTERN_CHAIN_CORE_REDUCE, 0},     {TP_PATTERN_CHAIN_BACKWARD, 1 + 4 + 8},
                 {TP_PATTERN_CHAIN_BACKWARD_REDUCE, 0}, {TP_PATTERN_CHAIN_CORE_BACKWARD, 1 + 4 + 8}, {TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE, 0}};
    tp_machine machine = ideal(0);
    machine.direct_slowdown = 3;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_overlap_shape shape = linear(cases[i].pattern, 2, 1000);
        tp_plan *plan = tpt_plan(TP_OVERLAP_DIRECT, cases[i].pattern, 2, 1);
        tp_plan_costs costs;
        cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_OK, "%s", tp_last_message());
        for (int part = 0; part < TP_PLAN_PARTS; part++) {
            double factor = cases[i].parts >> part & 1 ? 2 : 1; /* half of the operand is the peer's */
            tpt_same(costs.gemm_seconds[part], 0.020 * factor, tp_pattern_name(cases[i].pattern));
        }
        tp_plan_destroy(plan);
    }
}

/* Slices of columns: own rows in one call, the peer's once a slice, each of which but the first reads and writes their sums. */
Test(auto_costs, slices_cost_their_sums)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_ROW_BACKWARD, 2, 1000);
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_ROW_BACKWARD, 2, 4);
    tp_plan_costs costs;
    machine.reduce_bytes_per_second = 1e9;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_OK, "%s", tp_last_message());
    double sum = 500 * 1000 * 8 / 1e9;
    tpt_same(costs.gemm_overhead[0], 3 * sum / 5, "three times, over five calls");
    tpt_same(costs.gemm_overhead[1], 0, "weight gradient");
    tpt_same(costs.compute_seconds, shape.compute_bytes / 1e9, "what lies between");
    tp_plan_destroy(plan);
}

/* Every call of a weight gradient reads and writes it: under `direct`, once an owner of the slice. Sums of bf16 are rounded in the end. */
Test(auto_costs, calls_read_and_write_their_gradient)
{
    static const struct {
        tp_overlap algorithm;
        tp_pattern pattern;
        int chunks, calls;
        double passes; /* more than one */
    } cases[] = {{TP_OVERLAP_DIRECT, TP_PATTERN_ROW_BACKWARD, 1, 2, 1}, {TP_OVERLAP_DIRECT, TP_PATTERN_ROW_BACKWARD, 4, 8, 1},
                 {TP_OVERLAP_PULL, TP_PATTERN_ROW_BACKWARD, 4, 4, 0},   {TP_OVERLAP_NONE, TP_PATTERN_ROW_BACKWARD, 1, 1, 0},
                 {TP_OVERLAP_NONE, TP_PATTERN_BACKWARD, 1, 1, 0}};
    tp_machine machine = ideal(0);
    machine.reduce_bytes_per_second = 1e9;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_overlap_shape shape = linear(cases[i].pattern, 2, 1000);
        tp_plan *plan = tpt_plan(cases[i].algorithm, cases[i].pattern, 2, cases[i].chunks);
        tp_plan_costs costs;
        cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_OK, "%s", tp_last_message());
        tpt_same(costs.gemm_overhead[1], cases[i].passes * 8e6 / 1e9 / cases[i].calls, tp_overlap_name(cases[i].algorithm));
        tp_plan_destroy(plan);
    }
    tp_overlap_shape shape = linear(TP_PATTERN_ROW_BACKWARD, 2, 1000);
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_ROW_BACKWARD, 2, 4);
    tp_plan_costs wide, narrow;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &wide), TP_OK);
    shape.dtype = TP_DTYPE_BF16;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &narrow), TP_OK);
    tpt_same(narrow.gemm_overhead[0] - wide.gemm_overhead[0], 500 * 1000 * 6 / 1e9 / 5, "rounding, over five calls");
    tp_plan_destroy(plan);
}

/* A curve of their own: what a call of few rows takes is in it, so cutting costs what the curve says, and nothing is read and written besides. Slices are whole in
 * rows. Products with the weight have their own curve still. */
Test(auto_costs, weight_gradients_have_a_curve)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_BACKWARD, 2, 1000);
    machine.reduce_bytes_per_second = 1e9;
    machine.weight[TP_DTYPE_F32] = (tp_machine_curve){.points = 2, .rows = {500, 1000}, .flops = {1e11 / 1.5, 1e11 / 1.25}};
    tp_plan *pull = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_BACKWARD, 2, 1), *slices = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_ROW_BACKWARD, 2, 4);
    tp_plan_costs costs;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, pull, &costs), TP_OK, "%s", tp_last_message());
    tpt_same(costs.gemm_seconds[0], 0.020, "input gradient");
    tpt_same(costs.gemm_seconds[1], 0.025, "weight gradient");
    tpt_same(costs.gemm_overhead[1], 0.005 / 2, "two halves take 15 ms each");
    shape.dtype = TP_DTYPE_BF16;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, pull, &costs), TP_OK);
    tpt_same(costs.gemm_seconds[1], 0.025, "bf16 as f32");
    shape = linear(TP_PATTERN_ROW_BACKWARD, 2, 1000);
    cr_assert_eq(tp_overlap_costs(&machine, &shape, slices, &costs), TP_OK);
    tpt_same(costs.gemm_seconds[1], 0.025, "in slices");
    tpt_same(costs.gemm_overhead[1], 0, "slices have all rows");
    tp_plan_destroy(pull);
    tp_plan_destroy(slices);
}

/* One that is in no cache is read and written as fast as memory is, in its first call: few tokens take as long as more. Slices are first calls all. */
Test(auto_costs, gradients_come_out_of_memory)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_BACKWARD, 2, 1000);
    machine.weight[TP_DTYPE_F32] = (tp_machine_curve){.points = 1, .rows = {1}, .flops = {1e11}};
    machine.memory_bytes_per_second = 1e12;
    tp_plan *pull = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_BACKWARD, 2, 1), *slices = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_ROW_BACKWARD, 2, 4),
            *passes = tpt_plan(TP_OVERLAP_DIRECT, TP_PATTERN_ROW_BACKWARD, 2, 4);
    tp_plan_costs costs;
    const double rows = 1000 * 2000 * 4 / 1e12; /* the rest comes out of memory as it does everywhere */
    machine.gradient_bytes_per_second = 4e6 / 0.030;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, pull, &costs), TP_OK, "%s", tp_last_message());
    tpt_same(costs.gemm_seconds[1], 0.030 + rows, "30 ms for the gradient, 20 for the product");
    tpt_same(costs.gemm_overhead[1], 0.010 / 2, "30 ms and 10 instead of 30");
    machine.gradient_bytes_per_second = 4e6 / 0.015;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, pull, &costs), TP_OK);
    tpt_same(costs.gemm_seconds[1], 0.020 + rows, "hidden under the product");
    tpt_same(costs.gemm_overhead[1], 0.005 / 2, "15 ms and 10 instead of 20");
    shape.pattern = TP_PATTERN_ROW_BACKWARD;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, slices, &costs), TP_OK);
    tpt_same(costs.gemm_overhead[1], 0, "a slice takes its share of 20 ms");
    cr_assert_eq(tp_overlap_costs(&machine, &shape, passes, &costs), TP_OK);
    tpt_same(costs.gemm_overhead[1], 0.005 / 8, "each slice in two calls");
    tp_plan_destroy(pull);
    tp_plan_destroy(slices);
    tp_plan_destroy(passes);
}

/* Between the GEMMs of a feed-forward layer, forward and backward; the core of attention is no activation. */
Test(auto_costs, activations_take_time)
{
    static const struct {
        tp_pattern pattern;
        double elements; /* a row */
    } cases[] = {{TP_PATTERN_CHAIN, 700},          {TP_PATTERN_CHAIN_REDUCE, 700},          {TP_PATTERN_CHAIN_BACKWARD, 300}, {TP_PATTERN_CHAIN_BACKWARD_REDUCE, 300},
                 {TP_PATTERN_CHAIN_CORE, 0},       {TP_PATTERN_CHAIN_CORE_BACKWARD, 0},     {TP_PATTERN_GATHER_GEMM, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_machine machine = ideal(0);
        tp_overlap_shape shape = linear(cases[i].pattern, 2, 200);
        machine.activation_seconds = 1e-9;
        shape.cols[0] = 300;
        shape.inner[1] = 700;
        tp_plan *plan = tpt_plan(TP_OVERLAP_NONE, cases[i].pattern, 2, 1);
        tp_plan_costs costs;
        cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_OK, "%s", tp_last_message());
        tpt_same(costs.compute_seconds, 200 * cases[i].elements * 1e-9, tp_pattern_name(cases[i].pattern));
        tp_plan_destroy(plan);
    }
}

/* A collective beside compute has a figure of its own; without one it is an op like others. */
Test(auto_costs, collectives_beside_compute_meet)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    tp_plan *pipeline = tpt_plan(TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 2, 4), *pull = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 4);
    tp_overlap_candidate at;
    machine.lanes_share_cores = true;
    machine.lane_seconds = 1e-3;
    cr_assert_eq(tp_overlap_predict(&machine, &shape, pipeline, &at), TP_OK, "%s", tp_last_message());
    tpt_same(at.lane_seconds, 3e-3, "not measured; compute waits for the first one");
    machine.meet_seconds = 3e-3;
    cr_assert_eq(tp_overlap_predict(&machine, &shape, pipeline, &at), TP_OK);
    tpt_same(at.lane_seconds, 9e-3, "three of them");
    cr_assert_eq(tp_overlap_predict(&machine, &shape, pull, &at), TP_OK);
    tpt_same(at.lane_seconds, 4e-3, "pulls are none");
    tp_plan_destroy(pipeline);
    tp_plan_destroy(pull);
}

/* Weights, what is multiplied and what is made come out of memory once, however a plan is cut. */
Test(auto_costs, operands_come_out_of_memory)
{
    static const struct {
        tp_pattern pattern;
        int part;
        double bytes;
    } cases[] = {{TP_PATTERN_GATHER_GEMM, 0, 2e6 + 200 * (1000 + 2 * 1000) * 2},
                 {TP_PATTERN_BACKWARD, 1, 4e6 + 200 * (1000 + 1000) * 2},
                 {TP_PATTERN_CHAIN_BACKWARD, 2, 4e6 + 200 * (1000 + 1000) * 2},
                 {TP_PATTERN_CHAIN_BACKWARD, 1, 2e6 + 200 * (1000 + 2 * 1000) * 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int chunks = 1; chunks <= 4; chunks *= 4) {
            tp_machine machine = ideal(0);
            tp_overlap_shape shape = linear(cases[i].pattern, 2, 200);
            shape.dtype = TP_DTYPE_BF16;
            tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, cases[i].pattern, 2, chunks);
            tp_plan_costs without, with;
            cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &without), TP_OK, "%s", tp_last_message());
            machine.memory_bytes_per_second = 1e9;
            cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &with), TP_OK);
            tpt_same(with.gemm_seconds[cases[i].part] - without.gemm_seconds[cases[i].part], cases[i].bytes / 1e9, tp_pattern_name(cases[i].pattern));
            tpt_same(with.gemm_overhead[cases[i].part], without.gemm_overhead[cases[i].part], "once");
            tp_plan_destroy(plan);
        }
}

/* Threads that share cores sleep where they wait for each other. */
Test(auto_costs, lanes_on_shared_cores_wake_late)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 1);
    tp_plan_costs costs;
    machine.wake_seconds = 3e-5;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_OK);
    tpt_same(costs.wake_seconds, 0, "cores of their own");
    machine.lanes_share_cores = true;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_OK);
    tpt_same(costs.wake_seconds, 3e-5, "shared cores");
    tp_plan_destroy(plan);
}

/* Who sleeps for a modelled link wakes late; without one nobody sleeps. */
Test(auto_costs, waking_up_is_latency)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    tp_plan *plan = tpt_plan(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 2, 1);
    tp_overlap_candidate at;
    machine.wake_seconds = 3e-3;
    cr_assert_eq(tp_overlap_predict(&machine, &shape, plan, &at), TP_OK);
    tpt_same(at.seconds, 0.020, "no link");
    machine.link = (tp_link){2e-3, even_link};
    cr_assert_eq(tp_overlap_predict(&machine, &shape, plan, &at), TP_OK);
    tpt_same(at.seconds, 0.040 + 2e-3 + 3e-3, "a link");
    tp_plan_destroy(plan);
}
