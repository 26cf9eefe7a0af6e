/* A machine's figures: their text, and whose times they are, the CPU's or a GPU's. */
#include "costs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tp/auto.h"
#include "tp/tp.h"

/* A GPU's file says so in its first line: it can't be taken for the CPU's, nor the other way round, and one that was
 * made by hand is checked as any. */
Test(machines, text_says_whose_times_they_are)
{
    char text[8192], part[8192];
    tp_machine machine, back;
    tp_machine_default_of(TP_DEVICE_CUDA, &machine);
    cr_assert_lt(tp_machine_print(&machine, text, sizeof text), sizeof text);
    cr_assert_eq(strncmp(text, "tp-machine 3 cuda\n", 18), 0, "%s", text);
    cr_assert_eq(tp_machine_parse(text, &back), TP_OK, "%s", tp_last_message());
    cr_assert_eq(back.device, TP_DEVICE_CUDA);
    tp_machine_print(&back, part, sizeof part);
    cr_assert_str_eq(part, text);
    cr_assert_eq(back.gemm[TP_DTYPE_F16].points, machine.gemm[TP_DTYPE_F16].points);
    snprintf(part, sizeof part, "tp-machine 3 rocm%s", text + 17);
    cr_assert_eq(tp_machine_parse(part, &back), TP_ERR_FORMAT);
    cr_assert_not_null(strstr(tp_last_message(), "tp-machine 3 cuda"), "%s", tp_last_message());
    tp_machine_default_of(TP_DEVICE_CPU, &machine);
    tp_machine_default(&back);
    tp_machine_print(&machine, text, sizeof text);
    tp_machine_print(&back, part, sizeof part);
    cr_assert_str_eq(part, text);
    cr_assert(machine.device == TP_DEVICE_CPU && back.device == TP_DEVICE_CPU);
}

/* A context goes by times of its own kind of device only. */
Test(machines, of_another_device_is_refused)
{
    tp_machine gpu, cpu;
    tp_ctx *ctx = NULL;
    tp_machine_default_of(TP_DEVICE_CUDA, &gpu);
    tp_machine_default_of(TP_DEVICE_CPU, &cpu);
    tp_ctx_desc desc = {.version = TP_VERSION, .threads = 1, .machine = &gpu};
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_last_message(), "has times of cuda, the context is of cpu"), "%s", tp_last_message());
    desc.machine = &cpu;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK, "%s", tp_last_message());
    tp_ctx_destroy(ctx);
}

/* Lanes that are streams of their own and a quick link: with much to hide, something hides it; with little, nothing is
 * worth its launches. */
Test(machines, a_gpu_that_nobody_measured)
{
    tp_machine machine;
    tp_overlap_choice large, small;
    tp_machine_default_of(TP_DEVICE_CUDA, &machine);
    tp_overlap_shape shape = {.pattern = TP_PATTERN_GATHER_GEMM, .dtype = TP_DTYPE_BF16, .ranks = 8, .rows = 8192,
                              .cols = {3584}, .inner = {8192}};
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &large), TP_OK, "%s", tp_last_message());
    cr_assert_neq(large.algorithm, TP_OVERLAP_NONE, "%s", large.reason);
    shape.rows = 8;
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &small), TP_OK, "%s", tp_last_message());
    cr_assert_eq(small.chunks, 1, "%s %d", tp_overlap_name(small.algorithm), small.chunks);
}

static void same_curve(const tp_machine_curve *a, const tp_machine_curve *b)
{
    cr_assert_eq(a->points, b->points);
    for (int i = 0; i < a->points; i++) {
        tpt_same(a->rows[i], b->rows[i], "rows");
        tpt_same(a->flops[i], b->flops[i], "flops");
    }
}

Test(machines, text_round_trip)
{
    tp_machine machine, back;
    tp_machine_default(&machine);
    snprintf(machine.name, sizeof machine.name, "a processor, 2 cores");
    machine.link = (tp_link){5e-6, 1.25e9};
    machine.threads = 3;
    machine.lanes_share_cores = false;
    machine.meet_seconds = 41e-6;
    machine.wake_seconds = machine.direct_slowdown = 3600; /* the most there is */
    machine.activation_seconds = 617e-12;
    machine.gradient_bytes_per_second = 7e9;
    machine.weight[TP_DTYPE_F32] = (tp_machine_curve){.points = 1, .rows = {3}, .flops = {5e10}};
    machine.weight[TP_DTYPE_BF16] = (tp_machine_curve){.points = 2, .rows = {1, 64}, .flops = {1e10, 9e10}};
    size_t bytes = tp_machine_print(&machine, NULL, 0);
    char *text = malloc(bytes + 1);
    cr_assert_eq(tp_machine_print(&machine, text, bytes + 1), bytes);
    cr_assert_eq(tp_machine_parse(text, &back), TP_OK, "%s", tp_last_message());
    cr_assert_str_eq(back.name, machine.name);
    cr_assert(back.threads == 3 && !back.lanes_share_cores);
    tpt_same(back.link.latency_seconds, 5e-6, "latency");
    tpt_same(back.link.bytes_per_second, 1.25e9, "bandwidth");
    tpt_same(back.direct_slowdown, machine.direct_slowdown, "slowdown");
    cr_assert(back.wake_seconds <= 3600 && back.direct_slowdown <= 3600);
    tpt_same(back.meet_seconds, 41e-6, "a collective beside compute");
    tpt_same(back.activation_seconds, 617e-12, "an activation");
    tpt_same(back.gradient_bytes_per_second, 7e9, "gradients");
    for (int d = 0; d < TP_DTYPE_COUNT; d++) {
        same_curve(&back.gemm[d], &machine.gemm[d]);
        same_curve(&back.weight[d], &machine.weight[d]);
    }
    char *again = malloc(bytes + 1);
    cr_assert_eq(tp_machine_print(&back, again, bytes + 1), bytes);
    cr_assert_str_eq(text, again);
    FILE *file = fopen("machine-for-test.txt", "wb");
    cr_assert(file != NULL && fwrite(text, 1, bytes, file) == bytes && fclose(file) == 0);
    cr_assert_eq(tp_machine_load("machine-for-test.txt", &back), TP_OK);
    remove("machine-for-test.txt");
    cr_assert_eq(tp_machine_load("machine-for-test.txt", &back), TP_ERR_IO);
    free(text);
    free(again);
}

Test(machines, text_that_is_wrong)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "empty"},
        {"tp-machine 2\n", "line 1"},
        {"tp-machine 3 \n", "line 1"},
        {"tp-machine 3\nthreads two\n", "line 2 has no whole number of 0 or more"},
        {"tp-machine 3\n\nspeed 5\n", "line 3"},
        {"tp-machine 3\ncall_nanoseconds -5\n", "line 2 has no whole number of 0 or more"},
        {"tp-machine 3\ncall_nanoseconds 5.5\n", "line 2"},
        {"tp-machine 3\ncall_nanoseconds 99999999999999999999\n", "line 2"},
        {"tp-machine 3\ngemm f32 rows 8 flops_per_second 5\ngemm f32 rows 8 flops_per_second 6\n",
         "line 3 has rows 8, must be more than 8 of the point before"},
        {"tp-machine 3\ngemm f32 rows 0 flops_per_second 5\n", "line 2 has rows 0, must be more than 0:"},
        {"tp-machine 3\ngemm f32 rows 8 flops_per_second 0\n", "line 2 has flops_per_second 0, must be at least 1"},
        {"tp-machine 3\ngemm f33 rows 8 flops_per_second 1\n", "line 2"},
        {"tp-machine 3\ngemm f32 rows 8\n", "line 2"},
        {"tp-machine 3\nweight bf16 rows 8 flops_per_second 5\nweight bf16 rows 4 flops_per_second 6\n",
         "line 3 has rows 4, must be more than 8"},
        {"tp-machine 3\nweights f32 rows 8 flops_per_second 5\n", "line 2"},
        {"tp-machine 3\nthreads\n", "line 2"},
        {"tp-machine 3\nlanes_share_cores 2", "line 2 has lanes_share_cores 2, must be 0 to 1"},
        {"tp-machine 3\nthreads 0\n", "line 2 has threads 0, must be 1 to 4096"},
        {"tp-machine 3\nthreads 2\nthreads 2\n", "line 3 comes a second time"},
        {"tp-machine 3\ncall_nanoseconds 3600000000001\n",
         "line 2 has call_nanoseconds 3600000000001, must be 0 to 3600000000000"},
        {"tp-machine 3\nend\nthreads 2\n", "line 3 comes after the end"},
        {"tp-machine 3\nend 5\n", "line 2"},
        {"tp-machine 3\nthreads 2\n", "the text was cut"},
        {"tp-machine 3\nthreads 2\nend\n", "there is no line 'name'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_machine machine;
        cr_assert_eq(tp_machine_parse(cases[i].text, &machine), TP_ERR_FORMAT, "'%s'", cases[i].text);
        cr_assert(strstr(tp_last_message(), cases[i].words) != NULL, "'%s' has no '%s'", tp_last_message(),
                  cases[i].words);
    }
    tp_machine machine;
    cr_assert_eq(tp_machine_parse(NULL, &machine), TP_ERR_ARGUMENT);
}

/* Cut anywhere, or without any one of its lines, or with a byte of 0, it is refused; comments, empty lines and other
 * systems' line ends change nothing. */
Test(machines, text_that_is_not_whole)
{
    char text[4096], part[8192];
    tp_machine machine, back;
    tp_machine_default(&machine);
    size_t bytes = tp_machine_print(&machine, text, sizeof text);
    cr_assert_lt(bytes, sizeof text);
    for (size_t cut = 0; cut + 1 < bytes; cut++) { /* the last line end may be missing */
        snprintf(part, sizeof part, "%.*s", (int)cut, text);
        cr_assert_eq(tp_machine_parse(part, &back), TP_ERR_FORMAT, "after %zu of %zu bytes", cut, bytes);
    }
    int lines = 0, gemm = 0;
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1, lines++) {
        size_t before = (size_t)(line - text), length = strcspn(line, "\n") + 1;
        snprintf(part, sizeof part, "%.*s%s", (int)before, text, line + length);
        bool point = strncmp(line, "gemm", 4) == 0; /* a curve may have any number of points */
        gemm += point;
        cr_assert_eq(tp_machine_parse(part, &back), point ? TP_OK : TP_ERR_FORMAT, "without '%.*s'", (int)length - 1,
                     line);
    }
    cr_assert(gemm > 1 && lines > gemm + 15);
    size_t at = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\n') {
            memcpy(part + at, "\r\n# a comment\r\n\r\n", 17);
            at += 17;
        } else {
            part[at++] = text[i];
        }
    }
    part[at] = '\0';
    cr_assert_eq(tp_machine_parse(part, &back), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_machine_print(&back, part, sizeof part), bytes);
    cr_assert_str_eq(part, text);
    FILE *file = fopen("machine-with-zero.txt", "wb");
    cr_assert(file != NULL && fwrite(text, 1, bytes + 1, file) == bytes + 1 && fclose(file) == 0);
    cr_assert_eq(tp_machine_load("machine-with-zero.txt", &back), TP_ERR_FORMAT);
    cr_assert_not_null(strstr(tp_last_message(), "is 0"), "%s", tp_last_message());
    remove("machine-with-zero.txt");
}

static void load_refused(const char *path, const char *words)
{
    tp_machine machine;
    cr_assert_eq(tp_machine_load(path, &machine), TP_ERR_IO, "%s", path);
    cr_assert(strstr(tp_last_message(), words) != NULL, "'%s' has no '%s'", tp_last_message(), words);
    remove(path);
}

/* Files that can't be a machine's: one without an end, of which only the beginning would be read, one that nobody
 * writes into, which is not waited for, and an empty one. */
Test(machines, files_that_are_none, .timeout = 20)
{
    char text[4096];
    tp_machine machine;
    tp_machine_default(&machine);
    size_t bytes = tp_machine_print(&machine, text, sizeof text);
    FILE *file = fopen("machine-too-long.txt", "wb");
    cr_assert(file != NULL && fwrite(text, 1, bytes, file) == bytes);
    for (int i = 0; i < 70000; i++)
        fputc('\n', file);
    cr_assert_eq(fclose(file), 0);
    load_refused("machine-too-long.txt", "is too long");
    remove("machine-pipe.txt");
    cr_assert_eq(mkfifo("machine-pipe.txt", 0600), 0);
    load_refused("machine-pipe.txt", "is not a regular file");
    file = fopen("machine-empty.txt", "wb");
    cr_assert(file != NULL && fclose(file) == 0);
    load_refused("machine-empty.txt", "is empty");
}

/* A seventeenth point has no place. */
Test(machines, text_with_too_many_points)
{
    char text[4096];
    tp_machine machine;
    int length = snprintf(text, sizeof text, "tp-machine 3\n");
    for (int i = 1; i <= TP_MACHINE_POINTS + 1; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, "gemm f32 rows %d flops_per_second 5\n", i);
    cr_assert_eq(tp_machine_parse(text, &machine), TP_ERR_FORMAT);
    cr_assert_not_null(strstr(tp_last_message(), "line 18 is point 17 of its curve, which has at most 16"), "%s",
                       tp_last_message());
}

/* Whatever is in its name, a machine that was printed is read back. */
Test(machines, names_with_control_characters)
{
    char text[4096], again[4096];
    tp_machine machine, back;
    tp_machine_default(&machine);
    snprintf(machine.name, sizeof machine.name, "two\nlines\tand\r\177 \303\251\r");
    size_t bytes = tp_machine_print(&machine, text, sizeof text);
    cr_assert_lt(bytes, sizeof text);
    cr_assert_eq(tp_machine_parse(text, &back), TP_OK, "%s", tp_last_message());
    cr_assert_str_eq(back.name, "two lines and   \303\251 ");
    cr_assert_eq(tp_machine_print(&back, again, sizeof again), bytes);
    cr_assert_str_eq(again, text);
}

/* Past what a text can tell, rates are the most that it can. */
Test(machines, rates_without_bounds)
{
    static const double rates[] = {9223372036854775807.0, 1e19, 1e300};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        char text[4096];
        tp_machine machine, back;
        tp_machine_default(&machine);
        machine.copy_bytes_per_second = machine.link.bytes_per_second = rates[i];
        machine.gemm[TP_DTYPE_F32].flops[3] = i == 0 ? rates[i] : INFINITY;
        machine.gemm[TP_DTYPE_F32].rows[3] = rates[i];
        cr_assert_lt(tp_machine_print(&machine, text, sizeof text), sizeof text);
        cr_assert_eq(tp_machine_parse(text, &back), TP_OK, "%g: %s", rates[i], tp_last_message());
        tpt_same(back.copy_bytes_per_second, rates[0], "copy");
        tpt_same(back.link.bytes_per_second, rates[0], "link");
        tpt_same(back.gemm[TP_DTYPE_F32].flops[3], rates[0], "flops");
        tpt_same(back.gemm[TP_DTYPE_F32].rows[3], rates[0], "rows");
    }
}

static void machine_refused(const tp_machine *machine, const char *words)
{
    const tp_overlap_shape shape = {.pattern = TP_PATTERN_GATHER_GEMM, .dtype = TP_DTYPE_F32, .ranks = 2, .rows = 64,
                                    .cols = {32, 32}, .inner = {32, 32}};
    tp_overlap_choice choice;
    tp_overlap_table table;
    tp_plan_costs costs;
    tp_overlap_candidate candidate;
    tp_plan *plan = tpt_plan(TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, 2, 1);
    const tp_status status[] = {tp_overlap_table_fill(machine, &shape, &table),
                                tp_overlap_costs(machine, &shape, plan, &costs),
                                tp_overlap_predict(machine, &shape, plan, &candidate),
                                tp_overlap_choose(machine, &shape, &choice)};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(status[i], TP_ERR_ARGUMENT, "call %d: %s", i, words);
    cr_assert(strstr(tp_last_message(), words) != NULL, "'%s' has no '%s'", tp_last_message(), words);
    tp_plan_destroy(plan);
    tp_ctx *ctx = NULL;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1, .machine = machine}, &ctx), TP_ERR_ARGUMENT);
    cr_assert_null(ctx);
    cr_assert(strstr(tp_last_message(), "tp_ctx_desc.machine") != NULL && strstr(tp_last_message(), words) != NULL,
              "'%s' has no '%s'", tp_last_message(), words);
}

/* Made by hand: figures that can't be are named before anything goes by them. */
Test(machines, figures_that_are_none)
{
    tp_machine machine;
#define REFUSED(field, value, words)    \
    do {                                \
        tp_machine_default(&machine);   \
        machine.field = value;          \
        machine_refused(&machine, words); \
    } while (0)
    REFUSED(call_seconds, NAN, "machine.call_seconds is nan, must be 0 to 3600");
    REFUSED(start_seconds, 3601, "machine.start_seconds is 3601, must be 0 to 3600");
    REFUSED(copy_bytes_per_second, -1, "machine.copy_bytes_per_second is -1, must be 0 to");
    REFUSED(direct_slowdown, -2, "machine.direct_slowdown is -2, must be 0 to 3600");
    REFUSED(link.latency_seconds, -1e-6, "machine.link.latency_seconds is -1e-06, must be 0 to 3600");
    REFUSED(link.bytes_per_second, INFINITY, "machine.link.bytes_per_second is inf, must be 0 to");
    REFUSED(threads, -1, "machine.threads is -1, must be 0 to 4096");
    REFUSED(gemm[TP_DTYPE_F32].points, 99, "machine.gemm[f32].points is 99, must be 0 to 16");
    REFUSED(gemm[TP_DTYPE_F16].points, 1000000, "machine.gemm[f16].points is 1000000, must be 0 to 16");
    REFUSED(weight[TP_DTYPE_BF16].points, -1, "machine.weight[bf16].points is -1, must be 0 to 16");
    REFUSED(gemm[TP_DTYPE_F32].flops[2], NAN, "machine.gemm[f32].flops[2] is nan, must be more than 0");
    REFUSED(gemm[TP_DTYPE_F32].flops[0], 0, "machine.gemm[f32].flops[0] is 0, must be more than 0");
    REFUSED(gemm[TP_DTYPE_F32].rows[0], 0, "machine.gemm[f32].rows[0] is 0, must be finite and more than 0");
    REFUSED(gemm[TP_DTYPE_F32].rows[1], 1, "machine.gemm[f32].rows[1] is 1, must be finite and more than 1");
#undef REFUSED
}
