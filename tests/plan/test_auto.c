/* The automatic choice: it is the cheapest of what it lists, none within the noise, and a pure function. */
#include "auto_case.h"

#include "plan/auto.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tp_overlap_choice choose(const tp_machine *machine, const tp_overlap_shape *shape)
{
    tp_overlap_choice choice;
    cr_assert_eq(tp_overlap_choose(machine, shape, &choice), TP_OK, "%s", tp_last_message());
    return choice;
}

Test(auto, takes_the_cheapest)
{
    static const double links[] = {0, 1e7, 1e8, 1e9, 1e10};
    for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
        for (int ranks = 1; ranks <= 4; ranks++)
            for (int l = 0; l < 5; l++) {
                tp_machine machine;
                tp_machine_default(&machine);
                machine.link.bytes_per_second = links[l];
                machine.lanes_share_cores = false;
                tp_overlap_shape shape = linear((tp_pattern)pattern, ranks, 300);
                tp_overlap_choice choice = choose(&machine, &shape);
                cr_assert_eq(choice.candidate[0].algorithm, TP_OVERLAP_NONE);
                double least = INFINITY;
                for (int i = 0; i < choice.candidates; i++) {
                    const tp_overlap_candidate *c = &choice.candidate[i];
                    tp_plan_costs costs;
                    tp_plan *plan = tpt_plan(c->algorithm, shape.pattern, ranks, c->chunks);
                    cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_OK);
                    tp_timeline *timeline = tpt_simulate(plan, &costs);
                    tpt_same(c->seconds, timeline->seconds, "a candidate's time");
                    least = fmin(least, timeline->seconds);
                    tp_timeline_destroy(timeline);
                    tp_plan_destroy(plan);
                }
                cr_assert(choice.seconds <= least * 1.032 && choice.seconds <= choice.candidate[0].seconds);
                cr_assert(choice.seconds >= least && strlen(choice.reason) > 10);
            }
}

Test(auto, hides_what_can_be_hidden)
{
    tp_machine machine = ideal(even_link);
    static const tp_pattern patterns[] = {TP_PATTERN_GATHER_GEMM, TP_PATTERN_GEMM_SCATTER};
    for (int i = 0; i < 2; i++) {
        tp_overlap_shape shape = linear(patterns[i], 2, 1000);
        tp_overlap_choice choice = choose(&machine, &shape);
        cr_assert(choice.algorithm == TP_OVERLAP_PULL || choice.algorithm == TP_OVERLAP_RING);
        cr_assert_eq(choice.chunks, 16);
        tpt_same(choice.seconds, 0.02 * (1 + 1.0 / 32), "seconds");
        cr_assert(strstr(choice.reason, "48.4 % less than none") != NULL, "%s", choice.reason);
    }
}

Test(auto, none_where_nothing_is_gained)
{
    tp_machine machine = ideal(1e15);
    machine.call_seconds = 1e-6;
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 4, 1000);
    tp_overlap_choice choice = choose(&machine, &shape);
    cr_assert_eq(choice.algorithm, TP_OVERLAP_NONE);
    cr_assert(strstr(choice.reason, "3 %") != NULL, "%s", choice.reason);
    cr_assert_gt(choice.candidates, 10);
    shape.ranks = 1;
    choice = choose(&machine, &shape);
    cr_assert(choice.algorithm == TP_OVERLAP_NONE && strstr(choice.reason, "one rank") != NULL);
    shape.ranks = 2;
    shape.rows = 0;
    cr_assert_eq(choose(&machine, &shape).algorithm, TP_OVERLAP_NONE);
    shape.pattern = TP_PATTERN_GEMM;
    cr_assert_eq(choose(&machine, &shape).candidates, 1);
}

/* Cuts that leave pieces without rows are not looked at; all others are. */
Test(auto, pieces_have_rows)
{
    tp_machine machine = ideal(1e6);
    static const int chunk_counts[] = {1, 2, 4, 8, 16};
    for (int ranks = 2; ranks <= 3; ranks++)
        for (int64_t rows = 0; rows <= 49; rows++) {
            tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, ranks, rows);
            tp_overlap_choice choice = choose(&machine, &shape);
            int cuts = 0;
            for (int c = 0; c < 5; c++)
                cuts += chunk_counts[c] == 1 || rows >= ranks * chunk_counts[c];
            cr_assert_eq(choice.candidates, 1 + 4 * cuts, "%d ranks, %d rows: %d", ranks, (int)rows, choice.candidates);
            for (int i = 0; i < choice.candidates; i++)
                cr_assert(choice.candidate[i].chunks == 1 || choice.candidate[i].chunks * ranks <= rows,
                          "%d ranks, %d rows: %s with %d chunks", ranks, (int)rows,
                          tp_overlap_name(choice.candidate[i].algorithm), choice.candidate[i].chunks);
            cr_assert(choice.chunks == 1 || choice.chunks * ranks <= rows);
        }
}

/* On shared memory, a lane that copies on the core of the GEMM gains nothing: what remains is not to copy. */
Test(auto, copies_on_shared_cores_are_not_free)
{
    tp_machine machine;
    tp_machine_default(&machine);
    machine.copy_bytes_per_second = 2e8;
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    tp_overlap_choice choice = choose(&machine, &shape);
    cr_assert(choice.algorithm == TP_OVERLAP_DIRECT || choice.algorithm == TP_OVERLAP_NONE, "%s",
              tp_overlap_name(choice.algorithm));
    machine.direct_slowdown = 5; /* 25 ms of GEMM, 10 ms of copying the remote half */
    choice = choose(&machine, &shape);
    cr_assert(choice.seconds >= 0.025 + 0.010, "%g", choice.seconds);
    machine.lanes_share_cores = false;
    cr_assert(choose(&machine, &shape).seconds < 0.030);
    choice = choose(&machine, &shape);
    cr_assert(choice.algorithm == TP_OVERLAP_PULL || choice.algorithm == TP_OVERLAP_RING ||
              choice.algorithm == TP_OVERLAP_PIPELINE);
}

/* None stays unless something is faster by more than 3 %, with what its lanes take. */
Test(auto, none_stays_unless_much_is_gained)
{
    tp_machine machine = ideal(even_link * 4); /* chunks arrive while own rows are multiplied */
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    machine.lanes_share_cores = true;
    shape.apart = true; /* collectives, which need a lane */
    int left = 0, taken = 0;
    for (int i = 0; i < 40; i++) {
        machine.lane_seconds = i * 0.25e-3;
        tp_overlap_choice choice = choose(&machine, &shape);
        double none = choice.candidate[0].seconds, best = none;
        for (int c = 1; c < choice.candidates; c++)
            best = fmin(best, choice.candidate[c].seconds);
        cr_assert_eq(choice.algorithm == TP_OVERLAP_NONE, best >= none * 0.97, "%d quarters of a ms", i);
        left += choice.algorithm == TP_OVERLAP_NONE && best < none;
        taken += choice.algorithm != TP_OVERLAP_NONE;
    }
    cr_assert(left > 0 && taken > 0, "%d times a gain was left, %d times taken", left, taken);
}

/* Where lanes share cores, compute pulls itself: no start, no switch, but what it copies; a link's time is hidden as by
 * a lane. */
Test(auto, pulls_in_one_lane_where_lanes_share_cores)
{
    tp_machine machine = ideal(even_link);
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    machine.lanes_share_cores = true;
    machine.lane_seconds = machine.start_seconds = machine.wake_seconds = 1e-3;
    machine.link.latency_seconds = 0;
    machine.direct_slowdown = 3;
    tp_overlap_choice choice = choose(&machine, &shape);
    cr_assert(choice.algorithm == TP_OVERLAP_PULL && choice.chunks == 16, "%s", choice.reason);
    /* 20 ms, the last of 16 chunks' GEMM, and waking up for it. */
    tpt_same(choice.seconds, 0.020 + 0.020 / 32 + 1e-3, "hidden");
    machine.copy_bytes_per_second = 1e9; /* 2 MB: 2 ms */
    machine.link.bytes_per_second = 0;
    machine.direct_slowdown = 1.5; /* of the remote half: 5 ms */
    choice = choose(&machine, &shape);
    for (int i = 0; i < choice.candidates; i++)
        if (choice.candidate[i].algorithm == TP_OVERLAP_PULL)
            tpt_same(choice.candidate[i].seconds, 0.020 + 0.002, "copies");
}

/* Of what has no lanes 1.5 % are enough: nothing is uncertain about what lanes take. */
Test(auto, less_must_be_gained_without_lanes)
{
    static const double gains[] = {0.005, 0.014, 0.016, 0.029, 0.05};
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    for (int i = 0; i < 5; i++) {
        /* what crosses is so much of the whole, and direct hides it */
        tp_machine machine = ideal(even_link * (1 - gains[i]) / gains[i]);
        machine.lanes_share_cores = true;
        machine.start_seconds = 1e-3;
        tp_overlap_choice choice = choose(&machine, &shape);
        cr_assert_eq(choice.algorithm, gains[i] > 0.015 ? TP_OVERLAP_DIRECT : TP_OVERLAP_NONE, "%g: %s", gains[i],
                     choice.reason);
    }
}

/* 3 thousandths are not worth another chunk; 2 hundredths are. */
Test(auto, more_chunks_must_gain)
{
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1000);
    tp_machine machine = ideal(even_link / 0.503);
    tp_overlap_choice choice = choose(&machine, &shape);
    cr_assert(choice.algorithm == TP_OVERLAP_DIRECT && choice.chunks == 1, "%s %d", tp_overlap_name(choice.algorithm),
              choice.chunks);
    tpt_same(choice.seconds, 0.020 * 1.003, "one chunk");
    machine = ideal(even_link / 0.52);
    choice = choose(&machine, &shape);
    cr_assert(choice.algorithm == TP_OVERLAP_PULL && choice.chunks == 2, "%s %d", tp_overlap_name(choice.algorithm),
              choice.chunks);
    tpt_same(choice.seconds, 0.020, "two chunks");
}

Test(auto, repeats)
{
    tp_machine machine = ideal(1e8);
    tp_overlap_shape shape = linear(TP_PATTERN_CHAIN, 3, 77);
    tp_overlap_choice *choice = calloc(2, sizeof *choice);
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &choice[0]), TP_OK);
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &choice[1]), TP_OK);
    cr_assert(choice[0].algorithm == choice[1].algorithm && choice[0].chunks == choice[1].chunks &&
              choice[0].candidates == choice[1].candidates);
    for (int i = 0; i < choice[0].candidates; i++)
        cr_assert_eq(choice[0].candidate[i].seconds, choice[1].candidate[i].seconds);
    free(choice);
}

/* Where ranks don't reach each other's memory, nothing reads it. */
Test(auto, apart)
{
    tp_machine machine = ideal(1e8);
    tp_overlap_shape shape = linear(TP_PATTERN_BACKWARD, 4, 4096);
    shape.apart = true;
    tp_overlap_choice choice = choose(&machine, &shape);
    int seen[TP_OVERLAP_COUNT] = {0};
    for (int i = 0; i < choice.candidates; i++)
        seen[choice.candidate[i].algorithm]++;
    cr_assert(seen[TP_OVERLAP_NONE] == 1 && seen[TP_OVERLAP_BULK] == 1 && seen[TP_OVERLAP_PIPELINE] > 1);
    cr_assert(seen[TP_OVERLAP_DIRECT] == 0 && seen[TP_OVERLAP_PULL] == 0 && seen[TP_OVERLAP_RING] == 0);
}

Test(auto, table_of_rows)
{
    tp_machine machine;
    tp_machine_default(&machine);
    machine.link = (tp_link){1e-5, 1e9};
    tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, 1500);
    tp_overlap_table table;
    cr_assert_eq(tp_overlap_table_fill(&machine, &shape, &table), TP_OK);
    static const int64_t last[] = {1,  2,  3,   4,   6,   8,   12,  16,  24,   32,  48,
                                   64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536};
    int classes = sizeof last / sizeof *last, cuts = 0;
    cr_assert_eq(table.classes, classes);
    for (int i = 0; i < classes; i++) {
        cr_assert_eq(table.entry[i].rows, last[i]);
        int64_t first = i > 0 ? last[i - 1] + 1 : 1;
        shape.rows = (first + last[i]) / 2;
        tp_overlap_choice choice = choose(&machine, &shape);
        for (int64_t rows = first; rows <= last[i]; rows += first != last[i] ? last[i] - first : 1) {
            tp_overlap algorithm;
            int chunks;
            tp_overlap_table_find(&table, rows, &algorithm, &chunks);
            cr_assert(algorithm == choice.algorithm && chunks == choice.chunks, "%lld rows", (long long)rows);
        }
        cuts += choice.algorithm != TP_OVERLAP_NONE;
    }
    cr_assert_gt(cuts, 0);
    tp_overlap algorithm;
    int chunks;
    tp_overlap_table_find(&table, 1000000, &algorithm, &chunks);
    cr_assert(algorithm == table.entry[classes - 1].algorithm && chunks == table.entry[classes - 1].chunks);
    tp_overlap_table_find(&(tp_overlap_table){0}, 5, &algorithm, &chunks);
    cr_assert(algorithm == TP_OVERLAP_NONE && chunks == 1);
}

/* As many classes as hold the rows, and no more than there is room for. */
Test(auto, table_ends_where_the_rows_do)
{
    static const struct {
        int64_t rows;
        int classes;
    } cases[] = {{0, 1}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 5}, {7, 6}, {1536, 21}, {1537, 22},
    {1 << 24, TP_OVERLAP_CLASSES}, {1 << 28, TP_OVERLAP_CLASSES}};
    tp_machine machine;
    tp_machine_default(&machine);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_overlap_shape shape = linear(TP_PATTERN_GATHER_GEMM, 2, cases[i].rows);
        tp_overlap_table table;
        cr_assert_eq(tp_overlap_table_fill(&machine, &shape, &table), TP_OK);
        cr_assert_eq(table.classes, cases[i].classes, "%lld rows: %d", (long long)cases[i].rows, table.classes);
    }
}

/* Of tables beside what tp_overlap_choose finds for the middle of each class. */
typedef struct comparison {
    int classes, others;   /* entries, and those that are not what it finds */
    int calls, candidates; /* plans made and simulations, and what would be simulated for all entries */
    int changes;           /* of algorithm or chunks from an entry to the next */
} comparison;

static tp_status count_work(void *arg)
{
    comparison *counts = arg;
    counts->calls++;
    return TP_OK;
}

static void compare_with_choices(const tp_machine *machine, tp_overlap_shape shape, comparison *counts)
{
    tp_overlap_table table;
    cr_assert_eq(tpi_overlap_table_fill(machine, &shape, &(tpi_progress){count_work, counts}, &table), TP_OK, "%s",
                 tp_last_message());
    for (int i = 0; i < table.classes; i++) {
        shape.rows = i > 0 ? (table.entry[i - 1].rows + 1 + table.entry[i].rows) / 2 : 1;
        tp_overlap_choice choice = choose(machine, &shape);
        counts->others += choice.algorithm != table.entry[i].algorithm || choice.chunks != table.entry[i].chunks;
        counts->changes += i > 0 && (table.entry[i].algorithm != table.entry[i - 1].algorithm ||
                                     table.entry[i].chunks != table.entry[i - 1].chunks);
        counts->candidates += choice.candidates;
    }
    counts->classes += table.classes;
}

/* From none over direct to more and more chunks, as rows grow: nothing is left out of a table that changes so often. */
Test(auto, table_follows_every_change)
{
    tp_machine machine = ideal(even_link);
    comparison counts = {0};
    machine.call_seconds = 1e-4;
    compare_with_choices(&machine, linear(TP_PATTERN_GATHER_GEMM, 2, 1 << 15), &counts);
    cr_assert_eq(counts.others, 0, "%d of %d", counts.others, counts.classes);
    cr_assert_geq(counts.changes, 5);
}

/* A table leaves out most of what could be simulated, and loses next to nothing by it. */
Test(auto, table_is_that_of_all_candidates)
{
    static const tp_pattern patterns[] = {TP_PATTERN_GATHER_GEMM, TP_PATTERN_ROW_BACKWARD, TP_PATTERN_CHAIN,
                                          TP_PATTERN_CHAIN_BACKWARD_REDUCE};
    comparison counts = {0};
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
        for (int ranks = 2; ranks <= 4; ranks++)
            for (int linked = 0; linked < 2; linked++) {
                tp_machine machine;
                tp_machine_default(&machine);
                machine.lanes_share_cores = ranks != 3;
                machine.link = linked ? (tp_link){5e-6, 1e9} : (tp_link){0, 0};
                compare_with_choices(&machine, linear(patterns[p], ranks, 1 << 17), &counts);
            }
    cr_assert_gt(counts.classes, 800);
    cr_assert_leq(counts.others * 100, counts.classes, "%d of %d", counts.others, counts.classes);
    cr_assert_leq(counts.calls * 5, counts.candidates * 2, "%d of %d", counts.calls, counts.candidates);
}

static tp_status count_call(void *arg)
{
    int *left = arg;
    return --*left == 0 ? TP_ERR_PEER : TP_OK;
}

/* Whoever waits for a table hears of every plan and simulation; nothing is done once that fails. */
Test(auto, table_tells_of_its_progress)
{
    tp_machine machine;
    tp_machine_default(&machine);
    tp_overlap_shape shape = linear(TP_PATTERN_CHAIN, 4, 1 << 17);
    tp_overlap_table table;
    int left = -1, calls;
    const tpi_progress progress = {count_call, &left};
    cr_assert_eq(tpi_overlap_table_fill(&machine, &shape, &progress, &table), TP_OK);
    calls = -1 - left;
    cr_assert(calls >= table.classes / 4 * 5, "%d calls", calls); /* at least none and one of each algorithm */
    left = 7;
    cr_assert_eq(tpi_overlap_table_fill(&machine, &shape, &progress, &table), TP_ERR_PEER);
    cr_assert(left == 0 && table.classes == 0);
}

/* Tiny shapes, whose plans cost more than they move: no more is exposed than there is, nothing is hidden, and columns
 * stay apart. */
Test(auto, explains_tiny_and_huge_times)
{
    static tp_overlap_choice choice = {.algorithm = TP_OVERLAP_PULL, .chunks = 2, .reason = "so", .candidates = 2};
    const tp_overlap_shape shape = {
        .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 2, .rows = 2, .cols = {8}, .inner = {8}};
    choice.candidate[0] = (tp_overlap_candidate){.algorithm = TP_OVERLAP_PULL, .chunks = 2, .seconds = 24e-6,
                                                 .comm_seconds = 2e-6, .exposed_seconds = 22e-6, .hidden = -51.617};
    choice.candidate[1] = (tp_overlap_candidate){.algorithm = TP_OVERLAP_RING, .chunks = 2, .seconds = 1e15,
                                                 .comm_seconds = 1e15, .exposed_seconds = 1e15, .hidden = 1e6};
    char text[2048];
    tp_overlap_explain(&shape, &choice, text, sizeof text);
    cr_assert_not_null(strstr(text, " 24.0 \302\265s        2.00 \302\265s    2.00 \302\265s      none\n"), "%s", text);
    cr_assert_not_null(strstr(text, "s 1000000000000 s"), "%s", text);
    cr_assert_null(strstr(text, "s1000"), "%s", text);
}

Test(auto, explains_itself)
{
    tp_machine machine = ideal(even_link);
    tp_overlap_shape shape = linear(TP_PATTERN_BACKWARD, 2, 1000);
    tp_overlap_choice choice = choose(&machine, &shape);
    size_t bytes = tp_overlap_explain(&shape, &choice, NULL, 0);
    char *text = malloc(bytes + 1), line[64];
    cr_assert_eq(tp_overlap_explain(&shape, &choice, text, bytes + 1), bytes);
    cr_assert_eq(strlen(text), bytes);
    int lines = 0, marks = 0;
    for (const char *at = text; *at != '\0'; at++) {
        lines += *at == '\n';
        marks += *at == '*';
    }
    cr_assert_eq(lines, choice.candidates + 3);
    cr_assert_eq(marks, 1);
    snprintf(line, sizeof line, "* %-9s %6d", tp_overlap_name(choice.algorithm), choice.chunks);
    cr_assert(strstr(text, line) != NULL && strstr(text, choice.reason) != NULL && strstr(text, "bulk") != NULL, "%s",
              text);
    cr_assert(strstr(text, " %\n") != NULL && strstr(text, " -\n") == NULL, "%s", text);
    machine = ideal(1e15); /* no communication to speak of */
    choice = choose(&machine, &shape);
    tp_overlap_explain(&shape, &choice, text, bytes + 1); /* what doesn't fit is the end of the reason */
    cr_assert(strstr(text, " %\n") == NULL && strstr(text, " -\n") != NULL, "%s", text);
    free(text);
}

Test(auto, refused)
{
    tp_machine machine = ideal(1);
    tp_overlap_shape shape = linear(TP_PATTERN_CHAIN, 2, 10);
    tp_overlap_choice choice;
    cr_assert_eq(tp_overlap_choose(NULL, &shape, &choice), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_overlap_choose(&machine, NULL, &choice), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_overlap_choose(&machine, &shape, NULL), TP_ERR_ARGUMENT);
    shape.rows = -3;
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &choice), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "rows is -3") != NULL);
    shape = linear(TP_PATTERN_CHAIN, 65, 10);
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &choice), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "ranks is 65, must be 1 to 64") != NULL);
    shape = linear(TP_PATTERN_CHAIN, 2, 10);
    shape.dtype = TP_DTYPE_I64;
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &choice), TP_ERR_ARGUMENT);
    machine.wait_seconds = NAN;
    shape.dtype = TP_DTYPE_F32;
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &choice), TP_ERR_ARGUMENT);
    machine.wait_seconds = 0;
    shape.compute_flops = NAN;
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &choice), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "shape.compute_flops is nan") != NULL, "%s", tp_last_message());
    shape.compute_flops = 0;
    shape.compute_bytes = -1;
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &choice), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "shape.compute_bytes is -1") != NULL, "%s", tp_last_message());
}
