/* From a machine's figures and a shape to the costs of a plan. */
#include "auto_case.h"

#include <string.h>

Test(auto_costs, costs_of_a_shape)
{
    tp_machine machine = ideal(even_link);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 512);
    tp_plan_costs costs = costs_of(&machine, &shape, TP_OVERLAP_PULL, 4);
    tpt_same(costs.gemm_seconds[0], 512 * 2e6 / 1e11, "gemm");
    tpt_same(costs.gemm_overhead[0], 0, "overhead");
    tpt_same(costs.bytes[TP_BUFFER_INPUT], 512 * 4000, "input");
    /* a curve: 10 rows take as long as 100; between points times are linear */
    machine.gemm[TP_DTYPE_F32] = (tp_machine_curve){.points = 3, .rows = {10, 100, 200}, .flops = {1e10, 1e11, 1e11}};
    shape.rows = 80;
    costs = costs_of(&machine, &shape, TP_OVERLAP_PULL, 4);
    tpt_same(costs.gemm_seconds[0], 100 * 2e6 / 1e11, "gemm at 80 rows");
    tpt_same(costs.gemm_overhead[0], 4 * 100 * 2e6 / 1e11 / 5,
             "own 40 rows and four chunks of 10 cost as much as 80 each");
    /* and of how many at the best rate they cost as much */
    static const double rows[][2] = {{1, 10}, {150, 150}, {400, 400}};
    for (int i = 0; i < 3; i++) {
        shape.rows = (int64_t)rows[i][0];
        tpt_same(costs_of(&machine, &shape, TP_OVERLAP_NONE, 1).gemm_seconds[0], rows[i][1] * 2e6 / 1e11,
                 "below, between and past the points");
    }
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 4);
    shape.ranks = 3;
    cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "gather-gemm on 2 ranks") != NULL, "%s", tp_last_message());
    tp_plan_destroy(plan);
}

/* Tiles come in so many rows: what lies between takes as long as the larger, and half of the pieces that have two and a
 * half rows on average have three. */
Test(auto_costs, pieces_take_whole_tiles)
{
    static const struct {
        int64_t rows; /* own half in one call, the other in four */
        double own, piece; /* what they take, in rows */
    } cases[] = {{40, 20, 6}, {48, 24, 6}, {32, 16, 4}, {20, 10, 3}, {24, 12, 4}, {8, 4, 1}};
    tp_machine machine = ideal(0);
    /* 1 to 6 rows at the best rate; 24 are all that is known of more. */
    machine.gemm[TP_DTYPE_F32] =
        (tp_machine_curve){.points = 5, .rows = {1, 2, 4, 6, 24}, .flops = {1e11, 1e11, 1e11, 1e11, 1e11}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, cases[i].rows);
        tp_plan_costs costs = costs_of(&machine, &shape, TP_OVERLAP_PULL, 4);
        double rows = cases[i].own + 4 * cases[i].piece;
        tpt_same(5 * costs.gemm_overhead[0] + costs.gemm_seconds[0], rows * 2e6 / 1e11, "seconds");
    }
}

/* GEMMs that read peers' memory under direct, by pattern. */
Test(auto_costs, direct_slows_what_reads_peers)
{
    static const struct {
        tp_pattern pattern;
        unsigned parts;
    } cases[] = {{TP_PATTERN_GATHER_GEMM, 1},    {TP_PATTERN_GEMM_SCATTER, 0},          {TP_PATTERN_GEMM_REDUCE, 0},
                 {TP_PATTERN_GATHER_WEIGHT, 1}, {TP_PATTERN_BACKWARD, 2}, {TP_PATTERN_BACKWARD_REDUCE, 0},
                 {TP_PATTERN_ROW_BACKWARD, 3}, {TP_PATTERN_CHAIN, 1}, {TP_PATTERN_CHAIN_REDUCE, 0},
                 {TP_PATTERN_CHAIN_CORE, 1}, {TP_PATTERN_CHAIN_CORE_REDUCE, 0}, {TP_PATTERN_CHAIN_BACKWARD, 1 + 4 + 8},
                 {TP_PATTERN_CHAIN_BACKWARD_REDUCE, 0}, {TP_PATTERN_CHAIN_CORE_BACKWARD, 1 + 4 + 8},
                 {TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE, 0}};
    tp_machine machine = ideal(0);
    machine.direct_slowdown = 1.75;
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        int ranks = 2 + (int)(i % 2);
        tp_overlap_shape shape = linear(cases[i / 2].pattern, ranks, 1000);
        tp_plan_costs direct = costs_of(&machine, &shape, TP_OVERLAP_DIRECT, 1),
                      pull = costs_of(&machine, &shape, TP_OVERLAP_PULL, 1);
        for (int part = 0; part < TP_PLAN_PARTS; part++) {
            /* the rest of the operand is its own */
            double factor = cases[i / 2].parts >> part & 1 ? 1 + 0.75 * (ranks - 1) / ranks : 1;
            tpt_same(direct.gemm_seconds[part], 0.020 * factor, tp_pattern_name(shape.pattern));
            tpt_same(pull.gemm_seconds[part], 0.020, "pulled rows are its own");
        }
    }
}

/* Slices of columns: own rows in one call, the peer's once a slice, each of which but the first reads and writes their
 * sums. */
Test(auto_costs, slices_cost_their_sums)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_ROW_BACKWARD, 2, 1000);
    machine.reduce_bytes_per_second = 1e9;
    tp_plan_costs costs = costs_of(&machine, &shape, TP_OVERLAP_PULL, 4);
    double sum = 500 * 1000 * 8 / 1e9;
    tpt_same(costs.gemm_overhead[0], 3 * sum / 5, "three times, over five calls");
    tpt_same(costs.gemm_overhead[1], 0, "weight gradient");
    tpt_same(costs.gemm_overhead[3], 0, "no such GEMM");
    tpt_same(costs.compute_seconds, shape.compute_bytes / 1e9, "what lies between");
    shape.dtype = TP_DTYPE_BF16;
    tpt_same(costs_of(&machine, &shape, TP_OVERLAP_PULL, 2).gemm_overhead[0], (sum + 500 * 1000 * 6 / 1e9) / 3,
             "once, and rounding, over three calls");
    tpt_same(costs_of(&machine, &shape, TP_OVERLAP_PULL, 1).gemm_overhead[0], 0, "one slice");
    tpt_same(costs_of(&machine, &shape, TP_OVERLAP_NONE, 1).gemm_overhead[0], 0, "one call");
    shape.pattern = TP_PATTERN_GATHER_GEMM;
    tpt_same(costs_of(&machine, &shape, TP_OVERLAP_PULL, 4).gemm_overhead[0], 0, "rows are whole in columns");
}

/* Every call of a weight gradient reads and writes it: under `direct`, once an owner of the slice. Sums of bf16 are
 * rounded in the end. */
Test(auto_costs, calls_read_and_write_their_gradient)
{
    static const struct {
        tp_overlap algorithm;
        tp_pattern pattern;
        int chunks, calls;
        double passes; /* more than one */
    } cases[] = {{TP_OVERLAP_DIRECT, TP_PATTERN_ROW_BACKWARD, 1, 2, 1},
                 {TP_OVERLAP_DIRECT, TP_PATTERN_ROW_BACKWARD, 4, 8, 1},
                 {TP_OVERLAP_PULL, TP_PATTERN_ROW_BACKWARD, 4, 4, 0},
                 {TP_OVERLAP_NONE, TP_PATTERN_ROW_BACKWARD, 1, 1, 0},
                 {TP_OVERLAP_NONE, TP_PATTERN_BACKWARD, 1, 1, 0}};
    tp_machine machine = ideal(0);
    machine.reduce_bytes_per_second = 1e9;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_overlap_shape shape = linear(cases[i].pattern, 2, 1000);
        tp_plan_costs costs = costs_of(&machine, &shape, cases[i].algorithm, cases[i].chunks);
        tpt_same(costs.gemm_overhead[1], cases[i].passes * 8e6 / 1e9 / cases[i].calls,
                 tp_overlap_name(cases[i].algorithm));
    }
    tp_overlap_shape shape = linear(TP_PATTERN_ROW_BACKWARD, 2, 1000);
    tp_plan_costs wide = costs_of(&machine, &shape, TP_OVERLAP_PULL, 4);
    shape.dtype = TP_DTYPE_BF16;
    tp_plan_costs narrow = costs_of(&machine, &shape, TP_OVERLAP_PULL, 4);
    tpt_same(narrow.gemm_overhead[0] - wide.gemm_overhead[0], 500 * 1000 * 6 / 1e9 / 5, "rounding, over five calls");
}

/* A curve of their own: what a call of few rows takes is in it, so cutting costs what the curve says, and nothing is
 * read and written besides. Slices are whole in rows. Products with the weight have their own curve still. */
Test(auto_costs, weight_gradients_have_a_curve)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_BACKWARD, 2, 1000);
    machine.reduce_bytes_per_second = 1e9;
    machine.weight[TP_DTYPE_F32] =
        (tp_machine_curve){.points = 2, .rows = {500, 1000}, .flops = {1e11 / 1.5, 1e11 / 1.25}};
    tp_plan_costs costs = costs_of(&machine, &shape, TP_OVERLAP_PULL, 1);
    tpt_same(costs.gemm_seconds[0], 0.020, "input gradient");
    tpt_same(costs.gemm_seconds[1], 0.025, "weight gradient");
    tpt_same(costs.gemm_overhead[1], 0.005 / 2, "two halves take 15 ms each");
    shape.dtype = TP_DTYPE_BF16;
    costs = costs_of(&machine, &shape, TP_OVERLAP_PULL, 1);
    tpt_same(costs.gemm_seconds[1], 0.025, "bf16 as f32");
    shape.pattern = TP_PATTERN_BACKWARD_REDUCE;
    costs = costs_of(&machine, &shape, TP_OVERLAP_NONE, 1);
    tpt_same(costs.gemm_seconds[1], 0.025, "where sums are added up on all ranks");
    shape.pattern = TP_PATTERN_CHAIN;
    costs = costs_of(&machine, &shape, TP_OVERLAP_NONE, 1);
    tpt_same(costs.gemm_seconds[1], 0.020, "no weight gradient");
    shape = linear(TP_PATTERN_ROW_BACKWARD, 2, 1000);
    costs = costs_of(&machine, &shape, TP_OVERLAP_PULL, 4);
    tpt_same(costs.gemm_seconds[1], 0.025, "in slices");
    tpt_same(costs.gemm_overhead[1], 0, "slices have all rows");
}

/* One that is in no cache is read and written as fast as memory is, in its first call: few tokens take as long as more.
 * Slices are first calls all. */
Test(auto_costs, gradients_come_out_of_memory)
{
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_BACKWARD, 2, 1000);
    machine.weight[TP_DTYPE_F32] = (tp_machine_curve){.points = 1, .rows = {1}, .flops = {1e11}};
    machine.memory_bytes_per_second = 1e12;
    const double rows = 1000 * 2000 * 4 / 1e12; /* the rest comes out of memory as it does everywhere */
    machine.gradient_bytes_per_second = 4e6 / 0.030;
    tp_plan_costs costs = costs_of(&machine, &shape, TP_OVERLAP_PULL, 1);
    tpt_same(costs.gemm_seconds[1], 0.030 + rows, "30 ms for the gradient, 20 for the product");
    tpt_same(costs.gemm_overhead[1], 0.010 / 2, "30 ms and 10 instead of 30");
    shape.ranks = 3;
    tpt_same(costs_of(&machine, &shape, TP_OVERLAP_DIRECT, 1).gemm_overhead[1], 0.040 / 3 / 3,
             "30 ms and two thirds of 20 instead of 30");
    shape.ranks = 2;
    machine.gradient_bytes_per_second = 4e6 / 0.015;
    costs = costs_of(&machine, &shape, TP_OVERLAP_PULL, 1);
    tpt_same(costs.gemm_seconds[1], 0.020 + rows, "hidden under the product");
    tpt_same(costs.gemm_overhead[1], 0.005 / 2, "15 ms and 10 instead of 20");
    shape.pattern = TP_PATTERN_ROW_BACKWARD;
    costs = costs_of(&machine, &shape, TP_OVERLAP_PULL, 4);
    tpt_same(costs.gemm_overhead[1], 0, "a slice takes its share of 20 ms");
    costs = costs_of(&machine, &shape, TP_OVERLAP_DIRECT, 4);
    tpt_same(costs.gemm_overhead[1], 0.005 / 8, "each slice in two calls");
}

/* Between the GEMMs of a feed-forward layer, forward and backward; the core of attention is no activation. */
Test(auto_costs, activations_take_time)
{
    static const struct {
        tp_pattern pattern;
        double elements; /* a row */
    } cases[] = {{TP_PATTERN_CHAIN, 700},          {TP_PATTERN_CHAIN_REDUCE, 700},
                 {TP_PATTERN_CHAIN_BACKWARD, 300}, {TP_PATTERN_CHAIN_BACKWARD_REDUCE, 300},
                 {TP_PATTERN_CHAIN_CORE, 0},       {TP_PATTERN_CHAIN_CORE_BACKWARD, 0},
                 {TP_PATTERN_GATHER_GEMM, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_machine machine = ideal(0);
        tp_overlap_shape shape = linear(cases[i].pattern, 2, 200);
        machine.activation_seconds = 1e-9;
        shape.cols[0] = 300;
        shape.inner[1] = 700;
        tp_plan_costs costs = costs_of(&machine, &shape, TP_OVERLAP_NONE, 1);
        tpt_same(costs.compute_seconds, 200 * cases[i].elements * 1e-9, tp_pattern_name(cases[i].pattern));
    }
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
            tp_plan_costs without = costs_of(&machine, &shape, TP_OVERLAP_PULL, chunks);
            machine.memory_bytes_per_second = 1e9;
            tp_plan_costs with = costs_of(&machine, &shape, TP_OVERLAP_PULL, chunks);
            tpt_same(with.gemm_seconds[cases[i].part] - without.gemm_seconds[cases[i].part], cases[i].bytes / 1e9,
                     tp_pattern_name(cases[i].pattern));
            tpt_same(with.gemm_overhead[cases[i].part], without.gemm_overhead[cases[i].part], "once");
        }
}

/* Each dtype has its own rates, or those of f32. What nobody measured costs nothing, nor do no rows. */
Test(auto_costs, rates_of_dtypes)
{
    static const struct {
        tp_dtype dtype;
        double product, gradient;
    } cases[] = {{TP_DTYPE_F32, 0.020, 0.040}, {TP_DTYPE_BF16, 0.010, 0.005}, {TP_DTYPE_F16, 0.020, 0.040}};
    tp_machine machine = ideal(0);
    tp_overlap_shape shape = linear(TP_PATTERN_BACKWARD, 2, 1000);
    machine.gemm[TP_DTYPE_BF16] = (tp_machine_curve){.points = 1, .rows = {1}, .flops = {2e11}};
    machine.weight[TP_DTYPE_F32] = (tp_machine_curve){.points = 1, .rows = {1}, .flops = {5e10}};
    machine.weight[TP_DTYPE_BF16] = (tp_machine_curve){.points = 1, .rows = {1}, .flops = {4e11}};
    for (int i = 0; i < 3; i++) {
        shape.dtype = cases[i].dtype;
        tp_plan_costs costs = costs_of(&machine, &shape, TP_OVERLAP_NONE, 1);
        tpt_same(costs.gemm_seconds[0], cases[i].product, tp_dtype_name(cases[i].dtype));
        tpt_same(costs.gemm_seconds[1], cases[i].gradient, tp_dtype_name(cases[i].dtype));
    }
    shape.rows = 0;
    tpt_same(costs_of(&machine, &shape, TP_OVERLAP_NONE, 1).gemm_seconds[0], 0, "no rows");
    shape.rows = 1000;
    const tp_machine nothing = {.threads = 1};
    tp_plan_costs costs = costs_of(&nothing, &shape, TP_OVERLAP_NONE, 1);
    for (int part = 0; part < TP_PLAN_PARTS; part++)
        tpt_same(costs.gemm_seconds[part] + costs.gemm_overhead[part], 0, "nothing measured");
    tpt_same(costs.compute_seconds, 0, "nothing measured");
}

/* By pattern, of 10 rows of f16; columns and inner length of both GEMMs differ. */
Test(auto_costs, bytes_of_buffers)
{
    static const struct {
        tp_pattern pattern;
        double gathered, partial, output, second, gradient;
    } cases[] = {{TP_PATTERN_GATHER_GEMM, 10 * 5 * 2, 10 * 3 * 4, 10 * 3 * 2, 0, 0},
                 {TP_PATTERN_CHAIN, 10 * 5 * 2, 10 * 7 * 4, 10 * 7 * 2, 0, 0},
                 {TP_PATTERN_BACKWARD, 10 * 7 * 2, 10 * 3 * 4, 10 * 3 * 2, 10 * 7 * 2, 7 * 11 * 4},
                 {TP_PATTERN_BACKWARD_REDUCE, 10 * 7 * 2, 10 * 3 * 4, 10 * 3 * 2, 10 * 7 * 2, 7 * 11 * 4},
                 {TP_PATTERN_GATHER_WEIGHT, 10 * 3 * 2, 10 * 3 * 4, 10 * 3 * 2, 10 * 3 * 2, 3 * 5 * 4},
                 {TP_PATTERN_ROW_BACKWARD, 10 * 5 * 2, 10 * 3 * 4, 10 * 3 * 2, 10 * 7 * 2, 7 * 11 * 4},
                 {TP_PATTERN_CHAIN_BACKWARD, 10 * 5 * 2, 10 * 7 * 4, 10 * 7 * 2, 10 * 7 * 2, 7 * 11 * 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tp_machine machine = ideal(0);
        const tp_overlap_shape shape = {.pattern = cases[i].pattern, .dtype = TP_DTYPE_F16, .ranks = 2, .rows = 10,
                                        .cols = {3, 7}, .inner = {5, 11}};
        tp_plan_costs costs = costs_of(&machine, &shape, TP_OVERLAP_NONE, 1);
        const char *name = tp_pattern_name(cases[i].pattern);
        tpt_same(costs.bytes[TP_BUFFER_INPUT], 10 * 5 * 2, name);
        tpt_same(costs.bytes[TP_BUFFER_GATHERED], cases[i].gathered, name);
        tpt_same(costs.bytes[TP_BUFFER_PARTIAL], cases[i].partial, name);
        tpt_same(costs.bytes[TP_BUFFER_INBOX], cases[i].partial, name);
        tpt_same(costs.bytes[TP_BUFFER_OUTPUT], cases[i].output, name);
        tpt_same(costs.bytes[TP_BUFFER_MIDDLE], 10 * 3 * 2, name);
        tpt_same(costs.bytes[TP_BUFFER_CORE], 10 * 11 * 2, name);
        tpt_same(costs.bytes[TP_BUFFER_SECOND], cases[i].second, name);
        tpt_same(costs.bytes[TP_BUFFER_GATHERED_SECOND], cases[i].second, name);
        tpt_same(costs.bytes[TP_BUFFER_GRADIENT], cases[i].gradient, name);
        tpt_same(costs.bytes[TP_BUFFER_FIRST_GRADIENT], cases[i].gradient > 0 ? 3 * 5 * 4 : 0, name);
    }
}
