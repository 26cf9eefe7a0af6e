/* tp_bench plan: plans priced, proven and drawn by the program. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

#ifdef TPT_HAVE_CJSON
#include <cjson/cJSON.h>
#endif

Test(plan, proves_and_prices)
{
    expect("plan --algorithm all --pattern all --ranks 1,3 --chunks 1,3 --verify", 0, "direct", "chain-core-reduce");
    cr_assert_null(strstr(tpt_printed, "FAILED"), "%s", tpt_printed);
    /* sent, workspace, largest, peak: peers' pieces, of which each has a place. */
    expect("plan --algorithm pull --ranks 2 --chunks 4 --bytes 8000 --verify --csv", 0, "peak (bytes)",
           ",4000,4000,1000,true,4000,");
    expect("plan --algorithm none --pattern chain --ranks 2 --bytes 8000 --verify --csv", 0, "none,chain,2,1,",
           ",16000,4000,true,8000,");
    expect("plan --chunks 4 --link 0,8e8 --ranks 2", 0, "11.25", "0.875");
    /* Communication of next to nothing has no hidden share. */
    expect("plan --chunks 4 --link 0,8e8 --ranks 2 --bytes 1000 --csv", 0, "pull,gather-gemm,2,4,", ",,");
    cr_assert_null(strstr(tpt_printed, "nan"), "%s", tpt_printed);
}

#ifdef TPT_HAVE_CJSON
static double cell(const cJSON *row, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(row, name);
    cr_assert(cJSON_IsNumber(value), "no number %s in:\n%s", name, tpt_printed);
    return value->valuedouble;
}

/* Between two ranks a pull that compute does itself costs nothing more; nothing is left on the copy lane. */
Test(plan, pulls_in_one_lane)
{
    expect("plan --pattern chain --chunks 2 --one-lane --print --verify --link 0,8e8", 0, "P 2 ~1 after 1.0 reads",
           "yes");
    cr_assert_null(strstr(tpt_printed, "@copy"), "%s", tpt_printed);
    expect("plan --pattern chain --chunks 2 --print --verify --link 0,8e8", 0, "P 2 ~1 @copy after 1.0 reads", "yes");
}

Test(plan, json)
{
    cr_assert_eq(run("plan --algorithm pull,ring --chunks 2,8 --link 0,8e8 --json"), 0);
    cJSON *root = cJSON_Parse(tpt_printed);
    cr_assert_not_null(root, "%s", tpt_printed);
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(root, "rows"), *row;
    cr_assert_eq(cJSON_GetArraySize(rows), 4);
    cJSON_ArrayForEach(row, rows)
    {
        double chunks = cell(row, "chunks");
        cr_assert_float_eq(cell(row, "hidden"), 1 - 0.5 / chunks, 1e-9);
        cr_assert_float_eq(cell(row, "sent (bytes)"), 8e6, 1);
    }
    cJSON_Delete(root);
}
#endif

Test(plan, draws)
{
    char arguments[256];
    snprintf(arguments, sizeof arguments,
             "plan --algorithm ring --pattern chain --ranks 2 --svg plan-%d.svg --trace plan-%d.json", (int)getpid(),
             (int)getpid());
    expect(arguments, 0, "ring", "chain");
    char path[64];
    snprintf(path, sizeof path, "plan-%d.svg", (int)getpid());
    tpt_printed_file(path);
    cr_assert(strncmp(tpt_printed, "<svg ", 5) == 0 && strstr(tpt_printed, "</svg>\n") != NULL);
    snprintf(path, sizeof path, "plan-%d.json", (int)getpid());
    tpt_printed_file(path);
    cr_assert(strstr(tpt_printed, "\"traceEvents\"") != NULL);
    expect("plan --print --chunks 2", 0, "plan pull gather-gemm ranks 2 chunks 2\n0: E writes", "\n1: E writes");
}

Test(plan, automatic_choice_says_why)
{
    expect("plan --algorithm auto --rows 512 --cols 768 --inner 768 --link 5e-6,1e9", 0, "predicted", "less than none");
    expect("plan --algorithm auto --explain --json --rows 512 --cols 768 --inner 768 --link 5e-6,1e9", 0, "predicted",
           "\"rows\"");
    expect("plan --algorithm auto --rows 8 --cols 8 --inner 8 --link 0,1e15", 0, "* none",
           "nothing is faster than none");
}

/* Of layers: every combination that one of them runs as a plan. */
Test(plan, automatic_choices_of_layers_say_why)
{
    static const char shape[] = "--hidden 64 --ffn 96 --batch 1 --sequence 23 --dtype f32 --samples 2 --seconds 0.001";
    char arguments[256];
    snprintf(arguments, sizeof arguments, "mlp --overlap auto --explain --sequence-parallel %s", shape);
    expect(arguments, 0, "chain, f32, 2 ranks, 24 rows, gemm 0: 48 x 64, gemm 1: 64 x 48",
           "\n  algorithm chunks   predicted");
    cr_assert_not_null(strstr(tpt_printed, "chain-backward, f32, 2 ranks"), "%s", tpt_printed);
#ifdef TPT_SANITIZED
    static const char machine[] = " --machine plan_machine.tmp";
    write_machine(TP_DEVICE_CPU, "plan_machine.tmp");
#else
    static const char machine[] = ""; /* calibrated now */
#endif
    snprintf(arguments, sizeof arguments,
             "linear --overlap pull,auto --explain --kind row %s --link 5us,1GB/s --json%s", shape, machine);
    expect(arguments, 0, "gemm-reduce, f32, 2 ranks, 24 rows, gemm 0: 64 x 48", "\"rows\"");
    cr_assert_eq(strstr(tpt_printed, "linear: calibrating, about 30 s; --machine") != NULL, machine[0] == '\0', "%s",
                 tpt_printed);
    remove("plan_machine.tmp");
    snprintf(arguments, sizeof arguments, "mlp --overlap pull --explain %s", shape);
    expect(arguments, 2, "--explain", "--overlap auto");
    snprintf(arguments, sizeof arguments, "mlp --explain %s", shape);
    expect(arguments, 2, "--explain", "--overlap auto");
}

Test(plan, runs_for_real)
{
    static const char *const patterns[] = {"gather-gemm",     "gemm-scatter",         "gemm-reduce", "backward",
                                           "backward-reduce", "row-backward",         "chain",       "chain-reduce",
                                           "chain-backward",  "chain-backward-reduce"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char arguments[256];
        snprintf(
            arguments, sizeof arguments,
            "plan --run --rows 37 --cols 24 --inner 16 --algorithm pull,direct --chunks 2 --pattern %s --link 0,1e9",
            patterns[i]);
        expect(arguments, 0, "median of 15 runs", "simulated and run");
    }
    expect("plan --run --rows 8 --cols 8 --inner 8 --algorithm pipeline --pattern row-backward", 2, "--run",
           "pipeline on row-backward");
    expect("plan --run --rows 8 --cols 8 --inner 8 --algorithm none --pattern chain", 2, "--run", "none on chain");
    expect("plan --run --rows 8 --cols 8 --inner 8 --algorithm pull --pattern chain-core", 2, "--run",
           "pull on chain-core");
}

/* A plan as text, written by hand: proven, priced and drawn, or told where it is wrong. */
Test(plan, reads_plans)
{
    static const char plan[] = "plan direct gather-gemm ranks 2 chunks 1\n"
                               "0: E writes input[0], output[0x2]; G0 0 reads input[0] writes output[0]; G0 1 after "
                               "1.0 reads 1:input[1] writes output[1]; L after 1.2 "
                               "reads output[0x2]\n"
                               "1: E writes input[1], output[0x2]; G0 1 reads input[1] writes output[1]; G0 0 after "
                               "0.0 reads 0:input[0] writes output[0]; L%s "
                               "reads output[0x2]\n";
    for (int right = 0; right < 2; right++) {
        char path[64], arguments[256];
        snprintf(path, sizeof path, "plan-%d.txt", (int)getpid());
        FILE *file = fopen(path, "w");
        cr_assert_not_null(file);
        fprintf(file, plan, right ? " after 0.2" : "");
        fclose(file);
        snprintf(arguments, sizeof arguments, "plan --plan %s --link 0,8e8", path);
        if (right)
            expect(arguments, 0, "yes", "15.000");
        else
            expect(arguments, 1, "rank 0, op 2: gemm is not waited for by the leave of input piece 1 of rank 1",
                   ">G0 1<");
        snprintf(arguments, sizeof arguments, "plan --plan %s --link 0,8e8 --svg - >/dev/null 2>plan-svg.tmp #", path);
        cr_assert_eq(run(arguments), right ? 0 : 1);
        tpt_printed_file("plan-svg.tmp");
        cr_assert_eq(strstr(tpt_printed, ">G0 1<") != NULL, !right, "%s", tpt_printed);
        snprintf(arguments, sizeof arguments, "plan --plan - --link 0,8e8 < %s", path);
        expect(arguments, right ? 0 : 1, "direct", "gather-gemm");
        remove(path);
    }
    expect("plan --plan a.tmp --plan b.tmp", 2, "--plan is given twice, 'a.tmp' and 'b.tmp'", "one value");
    expect("plan --plan missing.tmp", 2, "missing.tmp", "No such file");
    expect("plan --plan /dev/null", 2, "/dev/null", "line 1");
    expect("plan --plan /dev/null --ranks 2", 2, "--plan", "--ranks");
    expect("plan --plan /dev/null --run --rows 1 --cols 1 --inner 1", 2, "--plan", "--run");
}

Test(plan, refusals)
{
    expect("plan --explain", 2, "--explain", "--algorithm auto");
    expect("plan --algorithm fast", 2, "unknown 'fast'", "pull");
    expect("plan --link 5", 2, "--link: '5'", "LATENCY,BANDWIDTH");
    expect("plan --link 5,x", 2, "--link: '5,x'", "LATENCY,BANDWIDTH");
    expect("plan --algorithm auto", 2, "--rows", "--inner");
    expect("plan --machine missing.tmp --rows 1 --cols 1 --inner 1", 2, "missing.tmp", "No such file");
    expect("plan --algorithm auto --rows 1 --cols 1 --inner 1 --gemm-ms 3", 2, "--gemm-ms", "--machine");
    expect("plan --algorithm auto --rows 8 --cols 8 --inner 8 --dtype i32", 2, "--dtype i32", "f32, bf16 or f16");
    expect("plan --run --rows 8 --cols 8 --inner 8 --dtype i32", 2, "--dtype i32", "f32, bf16 or f16");
    expect("plan --run --rows 8 --cols 8 --inner 8 --dtype f32,bf16", 2, "--dtype", "2 are given");
    expect("plan --run --rows 8 --cols 8 --inner 8 --compute-ms 3", 2, "--compute-ms", "--machine");
    expect("plan --rows 5", 2, "--rows", "--machine");
    expect("plan --algorithm all --cols 5", 2, "--cols", "--machine");
    expect("plan --dtype bf16", 2, "--dtype", "--machine");
    expect("plan --algorithm auto --rows 8 --cols 8 --inner 8 --chunks 3", 2, "--chunks 3", "auto chooses");
    expect("plan --algorithm none,bulk --chunks 1,2", 2, "--chunks 2", "cut nothing");
    expect("plan --chunks 1,2 --svg x.svg", 2, "--svg", "these are 2");
    expect("plan --chunks 17", 2, "17", "[0, 16]");
    expect("plan --algorithm pull,ring --one-lane", 2, "--one-lane", "not ring");
    expect("plan --plan /dev/null --one-lane", 2, "--plan", "--one-lane");
    expect("plan --svg /missing/folder/x.svg", 2, "/missing/folder/x.svg", "No such file");
    expect("calibrate --ranks 1", 2, "--ranks", "at least 2");
    expect("calibrate --ranks 2,4", 2, "--ranks", "one number");
}
