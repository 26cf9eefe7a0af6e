/* Figures of samples, threads at once, turns, and the machine. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "machine.h"
#include "measure.h"
#include "other_work.h"
#include "program.h"
#include "team.h"
#include "turns.h"

Test(measure, median_and_mean)
{
    double values[] = {5, 1, 4, 2, 3};
    cr_assert_eq(bench_median(values, 5), 3);
    cr_assert_eq(bench_median(values, 4), 2.5);
    cr_assert(isnan(bench_median(values, 0)));
    double powers[] = {1, 4, 16};
    cr_assert_float_eq(bench_geometric_mean(powers, 3), 4, 4 * 1e-15);
}

/* Disturbed samples are dropped, unless there are no others. */
Test(measure, figure_drops_disturbed_samples)
{
    static bench_samples samples;
    samples.count = 0;
    bench_sample_add(&samples, 9, false);
    bench_sample_add(&samples, 7, false);
    bench_figure figure = bench_sample_figure(&samples);
    cr_assert_eq(figure.seconds, 8);
    cr_assert_eq(figure.kept, 0);
    cr_assert_eq(figure.total, 2);
    bench_sample_add(&samples, 1, true);
    bench_sample_add(&samples, 3, true);
    bench_sample_add(&samples, 2, true);
    figure = bench_sample_figure(&samples);
    cr_assert_eq(figure.seconds, 2);
    cr_assert_eq(figure.kept, 3);
    cr_assert_eq(figure.total, 5);
    for (int i = 0; i < 2 * BENCH_SAMPLES; i++)
        bench_sample_add(&samples, 1, true);
    cr_assert_eq(samples.count, BENCH_SAMPLES);
}

Test(measure, figure_of_later_samples)
{
    bench_samples samples = {.count = 0};
    static const double seconds[] = {9, 9, 1, 2, 5};
    for (int i = 0; i < 5; i++)
        bench_sample_add(&samples, seconds[i], i != 4);
    bench_figure figure = bench_sample_figure_since(&samples, 2);
    cr_expect_eq(figure.seconds, 1.5);
    cr_expect_eq(figure.kept, 2);
    cr_expect_eq(figure.total, 3);
    figure = bench_sample_figure_since(&samples, 4);
    cr_expect_eq(figure.seconds, 5, "none is clean: all count");
    cr_expect_eq(figure.kept, 0);
    cr_expect(isnan(bench_sample_figure_since(&samples, 5).seconds));
}

Test(measure, of_two_figures_the_fewer_samples_count)
{
    const bench_figure many = {.seconds = 1, .kept = 9, .total = 9}, none = {.seconds = 2, .kept = 0, .total = 7};
    cr_assert(bench_figure_fewer(many, none).kept == 0 && bench_figure_fewer(many, none).total == 7);
    cr_assert(bench_figure_fewer(none, many).kept == 0 && bench_figure_fewer(many, many).total == 9);
}

/* Samples end at some number, calls don't. */
Test(measure, all_calls_are_counted)
{
    static bench_samples samples;
    samples = (bench_samples){.count = 0};
    for (int i = 0; i < 2 * BENCH_SAMPLES + 1; i++)
        bench_sample_add(&samples, 1, true);
    cr_assert_eq(samples.calls, 2 * BENCH_SAMPLES + 1);
    cr_assert_eq(samples.count, BENCH_SAMPLES);
}

Test(measure, clean_is_what_lost_little)
{
    cr_assert(bench_is_clean(0, 1, 0.5), "asleep, not switched out");
    cr_assert(bench_is_clean(3, 0.01, 0.00009));
    cr_assert(!bench_is_clean(1, 0.01, 0.00011));
    cr_assert(!bench_is_clean(1, 0.09, 0.002));
    cr_assert(bench_is_clean(1, 0.11, 0.002), "long ones may lose more");
    cr_assert(bench_is_clean(9, 1, 0.049));
    cr_assert(!bench_is_clean(9, 1, 0.051));
    cr_assert(!bench_is_clean(1, 1, 1));
}

/* ---- beside other work ------------------------------------------------------------------------------------------- */

static void quick(void *arg)
{
    (void)arg;
}

Test(measure, a_turn_is_clean_for_all_or_for_none)
{
    static bench_samples samples[2];
    bench_part parts[] = {{quick, NULL, &samples[0]}, {tpt_until_disturbed, NULL, &samples[1]}};
    pid_t other = tpt_begin_other_work();
    bench_measure(parts, 2, &(bench_plan){.least = 2, .most = 2, .seconds = 0});
    tpt_end_other_work(other);
    cr_assert_eq(samples[1].count, 2);
    cr_assert_eq(bench_sample_clean(&samples[1]), 0);
    cr_assert_eq(bench_sample_clean(&samples[0]), 0, "compared with what was disturbed");
}

/* A sample that has no place says nothing of those that have. */
Test(measure, a_full_buffer_keeps_its_marks)
{
    static bench_samples full, other;
    for (int i = 0; i < BENCH_SAMPLES; i++)
        bench_sample_add(&full, 1, i % 2 == 1);
    bench_part parts[] = {{tpt_until_disturbed, NULL, &other}, {quick, NULL, &full}};
    pid_t work = tpt_begin_other_work();
    bench_measure(parts, 2, &(bench_plan){.least = 1, .most = 1, .seconds = 0});
    tpt_end_other_work(work);
    cr_assert_eq(bench_sample_clean(&other), 0, "the turn was disturbed");
    cr_assert_eq(full.calls, BENCH_SAMPLES + 1);
    cr_assert_eq(bench_sample_clean(&full), BENCH_SAMPLES / 2);
    cr_assert(full.clean[BENCH_SAMPLES - 1]);
}

/* Figures of two sides are of the turns that were clean on both. */
Test(measure, pairs_are_of_the_same_turns)
{
    static bench_samples a, b;
    static const bool clean_a[] = {true, true, false, true, true}, clean_b[] = {true, false, true, true};
    for (int i = 0; i < 5; i++)
        bench_sample_add(&a, 10 + i, clean_a[i]);
    for (int i = 0; i < 4; i++)
        bench_sample_add(&b, 20 + i, clean_b[i]);
    cr_assert_eq(bench_sample_pair(&a, &b), 2);
    bench_figure x = bench_sample_figure(&a), y = bench_sample_figure(&b);
    cr_assert(x.seconds == 11.5 && x.kept == 2 && x.total == 4);
    cr_assert(y.seconds == 21.5 && y.kept == 2 && y.total == 4);
}

/* Products of some scheduler ticks are never alone: there is no share of them, and a note says so. */
Test(measure, products_beside_other_work_have_no_share)
{
    pid_t other = tpt_begin_other_work();
    int status = run("gemm --shapes 1024x3072x768 --variant NT,NN --dtype f32 --callers 1 --samples 3 --seconds 0.001 "
                     "--no-check --csv");
    tpt_end_other_work(other);
    cr_assert_eq(status, 0, "%s", tpt_printed);
    cr_assert_not_null(strstr(tpt_printed, "geometric mean,of 0,"), "%s", tpt_printed);
    int rows = 0;
    for (const char *row = tpt_printed; (row = strstr(row, "given,")) != NULL; row++, rows++) {
        double rate, peak;
        const char *cells = strstr(row, ",1,1,");
        cr_assert_not_null(cells, "%s", row);
        cr_assert_eq(sscanf(cells, ",1,1,%lf,%lf,", &rate, &peak), 2, "%s", row);
        cr_assert_eq(strncmp(strchr(strchr(cells + 5, ',') + 1, ','), ",,0,3,", 6), 0, "no share, no turn of 3: %s",
                     cells);
    }
    cr_assert_eq(rows, 2);
}

static int order[64], runs;

static void part_a(void *arg)
{
    (void)arg;
    order[runs++] = 'a';
}

static void part_b(void *arg)
{
    (void)arg;
    order[runs++] = 'b';
}

Test(measure, parts_take_turns)
{
    static bench_samples samples[2];
    runs = 0;
    bench_part parts[] = {{part_a, NULL, &samples[0]}, {part_b, NULL, &samples[1]}};
    bench_measure(parts, 2, &(bench_plan){.warmup = 1, .least = 3, .most = 3, .seconds = 0});
    cr_assert_eq(runs, 8);
    for (int i = 0; i < runs; i++)
        cr_assert_eq(order[i], i % 2 == 0 ? 'a' : 'b');
    cr_assert_eq(samples[0].count, 3);
    cr_assert_eq(samples[1].count, 3);
}

static atomic_int seen;

static void see(void *arg, int index)
{
    (void)arg;
    atomic_fetch_add(&seen, 1 << index);
}

Test(measure, threads_run_together)
{
    atomic_store(&seen, 0);
    cr_assert(bench_together(5, true, see, NULL));
    cr_assert_eq(atomic_load(&seen), 31);
}

typedef struct turn_log {
    bench_turns turns;
    int count;
    int party[64];
} turn_log;

/* Party p works p + 1 times. */
static void take_turns(void *arg, int party)
{
    turn_log *log = arg;
    for (int i = 0; i <= party; i++) {
        bench_turns_take(&log->turns, party);
        log->party[log->count++] = party;
        bench_turns_pass(&log->turns, party);
    }
}

Test(measure, turns_go_round_until_all_have_left)
{
    static turn_log log;
    static const int expected[] = {0, 1, 2, 1, 2, 2};
    bench_turns_init(&log.turns, 3);
    cr_assert(bench_turns_run(&log.turns, take_turns, &log));
    bench_turns_free(&log.turns);
    cr_assert_eq(log.count, 6);
    cr_assert_eq(memcmp(log.party, expected, sizeof expected), 0);
}

Test(machine, looks_plausible)
{
    bench_machine machine = bench_machine_look();
    cr_assert_geq(machine.cores, 1);
    cr_assert_gt(machine.memory, machine.available / 2);
    cr_assert(tp_isa_available(machine.isa));
    char line[256];
    bench_machine_line(&machine, TP_ISA_PORTABLE, line, sizeof line);
    cr_assert_not_null(strstr(line, "portable"), "%s", line);
}

/* What was disturbed whenever it was looked at is no bandwidth to hold steps against. */
Test(machine, memory_is_as_fast_as_clean_samples_say)
{
    cr_assert_eq(bench_streamer_rate(&(bench_figure){.seconds = 0.002, .kept = 3, .total = 9}, 1e9),
                 bench_streamer_bytes / 0.002);
    cr_assert_eq(bench_streamer_rate(&(bench_figure){.seconds = 0.2, .kept = 0, .total = 9}, 1e9), 1e9);
}

/* Whether the mapping that has an address was advised to lie on huge pages. */
static bool is_advised(const void *address)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false, advised = false;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            inside = (uintptr_t)address >= begin && (uintptr_t)address < end;
        if (inside && strncmp(line, "VmFlags:", 8) == 0)
            advised = strstr(line, " hg") != NULL;
    }
    if (maps != NULL)
        fclose(maps);
    return advised;
}

/* As the library's own arrays are, whose speed is compared with it. */
Test(machine, streams_are_of_memory_as_the_library_has_it)
{
    tp_ctx *ctx;
    void *own;
    bench_streamer streamer;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_PARAM, bench_stream_memory, &own), TP_OK);
    cr_assert(bench_streamer_open(&streamer));
    const uintptr_t huge = (uintptr_t)2 << 20;
    cr_assert_eq((uintptr_t)own % huge, 0);
    cr_assert((uintptr_t)streamer.in % huge == 0 && (uintptr_t)streamer.out % huge == 0);
    cr_assert_eq(is_advised(streamer.in), is_advised(own));
    cr_assert_eq(is_advised(streamer.out), is_advised(own));
    bench_streamer_close(&streamer);
    tp_ctx_release(ctx, TP_MEMORY_PARAM, own, bench_stream_memory);
    tp_ctx_destroy(ctx);
}

/* A run adds all of its arrays as often as its bytes say. */
Test(machine, streamer_adds_all_of_memory)
{
    bench_streamer streamer;
    cr_assert(bench_streamer_open(&streamer));
    const size_t floats = bench_stream_memory / sizeof(float);
    const float rounds = (float)(bench_streamer_bytes / (3.0 * bench_stream_memory));
    cr_assert(rounds >= 1 && rounds == (float)(int)rounds);
    for (int run = 1; run <= 2; run++) {
        bench_streamer_run(&streamer);
        for (size_t i = 0; i < floats; i += 4093)
            cr_assert_eq(streamer.out[i], (1 + (float)run * rounds) * (float)(i % 7));
    }
    bench_streamer_close(&streamer);
    cr_assert_null(streamer.in);
}

/* The loops count what they do, on every instruction set that is here. */
Test(machine, peak_loops)
{
    for (int isa = TP_ISA_PORTABLE; isa < TP_ISA_COUNT; isa++) {
        if (!tp_isa_available((tp_isa)isa))
            continue;
        for (int dtype = TP_DTYPE_F32; dtype <= TP_DTYPE_BF16; dtype++) {
            bench_peak peak = bench_peak_of((tp_isa)isa, (tp_dtype)dtype);
            cr_assert_eq(peak.run(200), 2 * peak.run(100), "%s", peak.what);
            cr_assert_gt(bench_peak_measure(&peak, 0.005), 1e8, "%s", peak.what);
        }
    }
}

/* By round: chains, lanes, and a multiplication with an addition; a pair of them in dot products. What runs through
 * more of them in the same time has that many times the peak. */
Test(machine, peak_loops_count_every_lane)
{
    static const struct {
        tp_isa isa;
        tp_dtype dtype;
        double flops;
    } loops[] = {{TP_ISA_AVX2, TP_DTYPE_F32, 12 * 8 * 2},
                 {TP_ISA_AVX512, TP_DTYPE_F32, 12 * 16 * 2},
                 {TP_ISA_AVX512_BF16, TP_DTYPE_BF16, 12 * 32 * 2}};
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++)
        if (tp_isa_available(loops[i].isa))
            cr_assert_eq(bench_peak_of(loops[i].isa, loops[i].dtype).run(100), 100 * loops[i].flops);
}

/* What no implementation can beat: a rank's share of the model's FLOPs at its peak, and of AdamW's 28 bytes a parameter
 * at its bandwidth, which are printed with three digits; norms are not shared. */
Test(machine, steps_are_held_against_flops_and_bytes_of_one_rank)
{
    const tp_model_desc model = {.family = TP_MODEL_GPT2, .layers = 2, .hidden = 128, .heads = 4, .vocabulary = 512,
                                 .positions = 32, .dtype = TP_DTYPE_F32};
    double peak, bandwidth, time, limit;
    for (int ranks = 1; ranks <= 2; ranks++) {
        char arguments[200];
        snprintf(arguments, sizeof arguments,
                 "roofline --layers 2 --hidden 128 --heads 4 --vocabulary 512 --batch 2 --sequence 32 --dtype f32 "
                 "--steps 3 --warmup 1 --threads 1 --ranks %d",
                 ranks);
        cr_assert_eq(run(arguments), 0, "%s", tpt_printed);
        const char *row = strstr(tpt_printed, "peak and optimizer's bytes"),
                   *note = strstr(tpt_printed, "limits of one"), *memory = note != NULL ? strstr(note, " MB), ") : NULL;
        cr_assert(row != NULL && memory != NULL, "%s", tpt_printed);
        cr_assert_eq(sscanf(row, "peak and optimizer's bytes - %lf %lf", &time, &limit), 2, "%s", row);
        cr_assert_eq(sscanf(note, "limits of one rank: %lf", &peak), 1, "%s", note);
        cr_assert_eq(sscanf(memory, " MB), %lf in memory", &bandwidth), 1, "%s", memory);
        double expected = (tp_model_flops(&model, 64, 32) / (peak * 1e9) +
                           28 * (double)tp_model_parameters(&model) / (bandwidth * 1e9)) * 1e3 / ranks;
        cr_assert_float_eq(limit, expected, 0.02 * expected, "%g ms of %d ranks, expected %g", limit, ranks, expected);
    }
}

/* ---- ranks together ---------------------------------------------------------------------------------------------- */

typedef struct uneven_sample {
    bench_team_sample sample; /* first */
    int rank;
} uneven_sample;

static tp_status take_uneven(void *arg)
{
    uneven_sample *taken = arg;
    taken->sample.seconds = taken->rank == 0 ? 1 : 3;
    taken->sample.switched = false;
    return TP_OK;
}

typedef struct uneven_run {
    bench_team team;
    bench_team_figure figure;
} uneven_run;

static tp_status run_uneven(tp_ctx *ctx, void *arg)
{
    uneven_run *run = arg;
    uneven_sample taken = {.rank = tp_ctx_rank(ctx)};
    const bench_team_part part = {.fn = take_uneven, .arg = &taken, .figure = &run->figure};
    const bench_team_plan plan = {.least = 3, .most = 3, .repeats = 1, .whole = true};
    return bench_team_compare(&run->team, ctx, &plan, &part, 1);
}

/* A sample's time is the mean over ranks, as nccl-tests has it. */
Test(measure, ranks_times_are_averaged)
{
    static uneven_run run;
    bench_team_init(&run.team, 2, 1);
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 2}, run_uneven, &run), TP_OK, "%s", tp_last_message());
    cr_assert(run.figure.figure.seconds == 2 && run.figure.figure.kept == 3 && run.figure.figure.total == 3);
}
