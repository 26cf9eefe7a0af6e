/* tp_bench as a program: what it prints, what it refuses, and its exit status. */
#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program.h"

#ifdef TPT_HAVE_CJSON
#include <cjson/cJSON.h>
#endif

Test(command, help)
{
    expect("--help", 0, "usage: tp_bench COMMAND", "sweep");
    static const char *const commands[] = {"info",  "gemm",  "collective", "linear", "mlp",       "attention", "block",
                                           "model", "sweep", "roofline",   "plan",   "calibrate", "auto"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char arguments[64], usage[64];
        snprintf(arguments, sizeof arguments, "%s --help", commands[i]);
        snprintf(usage, sizeof usage, "usage: tp_bench %s", commands[i]);
        expect(arguments, 0, usage, "examples:\n  tp_bench");
        cr_expect_not_null(strstr(tpt_printed, "--json"), "%s", tpt_printed);
    }
}

/* What was asked for and did not get out is a failure, in one line. */
Test(command, standard_output_that_fails)
{
    static const char *const arguments[] = {"--help >/dev/full",
                                            "--help >&-",
                                            "plan --help >/dev/full",
                                            "plan >/dev/full",
                                            "plan --print >/dev/full",
                                            "plan --json >/dev/full",
                                            "plan --csv - >/dev/full",
                                            "plan --svg - >/dev/full",
                                            "plan --trace - >/dev/full"};
    struct stat full; /* the barest of containers have none, and a file would be made */
    bool has_full = stat("/dev/full", &full) == 0 && S_ISCHR(full.st_mode);
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        if (!has_full && strstr(arguments[i], "/dev/full") != NULL)
            continue;
        char command[64];
        snprintf(command, sizeof command, "%s 2>bench_full.tmp #", arguments[i]); /* apart from the other */
        cr_assert_eq(run(command), 3, "%s", arguments[i]);
        tpt_printed_file("bench_full.tmp");
        cr_expect_str_eq(tpt_printed, "tp_bench: standard output could not be written\n", "%s", arguments[i]);
    }
}

Test(command, refusals_name_field_and_both_numbers)
{
    FILE *file = fopen("bench_short.tmp", "w");
    fputs("short text", file);
    fclose(file);
    expect("", 2, "usage:", "commands:");
    expect("swep", 2, "unknown command 'swep'", "did you mean 'sweep'");
    expect("sweep --layer 2", 2, "--layer", "--layers");
    expect("sweep --heads 12", 2, "256", "12");
    expect("sweep --model gtp2", 2, "gtp2", "did you mean \"gpt2\"");
    expect("sweep --text bench_short.tmp", 2, "10 tokens", "--sequence 128");
    expect("sweep --text missing.tmp", 2, "missing.tmp", "No such file");
    expect("sweep --ranks 0", 2, "--ranks: 0", "[1, 64]");
    expect("sweep --ranks 65", 2, "--ranks: 65", "[1, 64]");
    expect("sweep --ranks 16", 2, "heads 8", "16");
    expect("sweep --batch 4 --microbatch 3", 2, "--batch 4", "--microbatch 3");
    expect("sweep --steps 5 --warmup 5", 2, "--warmup 5", "--steps 5");
    expect("model --positions 64 --sequence 65", 2, "--sequence 65", "positions 64");
    expect("model --vocabulary 255", 2, "256", "255");
    expect("model --model gpt2 --family llama", 2, "--family", "--model gpt2");
    expect("block --hidden 100 --heads 8", 2, "--hidden 100", "--heads 8");
    expect("mlp --ffn 3 --ranks 4", 2, "--ffn 3", "4 ranks");
    expect("linear --dropout 0.5", 2, "--dropout 0.5", "--kind column");
    expect("linear --kind replicated --overlap pull", 2, "--kind replicated", "--overlap");
    expect("attention --dtype i32", 2, "--dtype i32", "f32, bf16 or f16");
    expect("collective -f 2 -i 1K", 2, "--factor 2", "--increment 1024");
    expect("collective -b 2M -e 1M", 2, "--begin 2097152", "--end 1048576");
    expect("collective --peer openmp", 2, "--peer: unknown 'openmp'", "did you mean 'openmpi'");
    expect("collective --peer mpich --ranks 4", 2, "--ranks 4", "compares 2");
    expect("collective --peer mpich --dtype bf16", 2, "--dtype bf16", "compares f32");
    expect("collective --peer mpich --operation broadcast", 2, "--operation broadcast", "all_gather");
    expect("collective --peer mpich --link 5us,2GB/s", 2, "--peer mpich", "--link");
    expect("collective --near 3", 2, "--near 3", "--peer");
    expect("collective --peer mpich --near 0", 2, "--near: 0", "[0.001, 36000]");
    expect("collective --peer mpich -b 1K -e 8G", 2, "--end 8589934592", "at most 8589934588 bytes");
    expect("collective --peer mpich -e 7", 2, "--end 7", "8 bytes");
    expect("gemm --peer mpich", 2, "--peer: unknown 'mpich'", "onednn");
    expect("gemm --peer onednn --threads 2", 2, "--threads 2", "has 1 a caller");
    expect("gemm --callers 2,1,2", 2, "--callers: 2", "twice");
    expect("sweep --dtype f32,bf16,f32", 2, "--dtype: f32", "twice");
    expect("gemm --shapes 5x5", 2, "5x5", "MxNxK");
    expect("info --json --csv", 2, "--json", "--csv");
    expect("gemm --plot picture.jpg", 2, "picture.jpg", ".svg or .png");
    expect("sweep --layers 13 --model gpt2", 2, "--layers 13", "12 layers");
    expect("roofline --steps 5 --warmup 5", 2, "--warmup 5", "--steps 5");
    expect("roofline --overlap ring", 2, "--overlap", "roofline");
    /* Zeros that would go unheeded, since they stand for what wasn't given. */
    expect("collective --begin 0", 2, "--begin: 0", "[1, 1099511627776]");
    expect("collective --end 0", 2, "--end: 0", "[1, 1099511627776]");
    expect("gemm --warmup 0", 2, "--warmup: 0", "[1, 1000]");
    expect("model --lr 0", 2, "--lr: 0", "[1e-30, 100]");
    remove("bench_short.tmp");
}

/* A shape that no machine holds is refused by the size of a dry run. */
Test(command, too_large_is_refused)
{
    expect("sweep --model llama3-70b --ranks 1 --scaling strong", 2, "are needed", "are free");
}

Test(command, info)
{
    expect("info --seconds 0.01", 0, "f32 peak, 1 core", "memory read, 1 core");
    expect("info --seconds 0.01", 0, "transport threads", "backend cuda");
}

/* Where a library is not there, one line says what to install. */
Test(command, mpi_peers)
{
    static const char *const peers[] = {"openmpi", "mpich"};
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
        char arguments[128];
        /* The first three sizes are of the same elements. */
        snprintf(arguments, sizeof arguments,
                 "collective --peer %s -b 4088 -e 4K -i 3 --seconds 0.002 --samples 3 --near 0.05 --csv", peers[i]);
        int status = run(arguments);
        static const char row[] = "\n4088,1022,reduce_scatter,in,nothing,";
        const char *first = strstr(tpt_printed, row);
        if (status == 3)
            cr_expect(strstr(tpt_printed, "were not there when this was configured") ||
                          strstr(tpt_printed, "did not start"),
                      "%s", tpt_printed);
        else
            cr_expect(status == 0 && first != NULL && strstr(first + 1, row) == NULL, "%d: %s", status, tpt_printed);
    }
}

Test(command, gemm)
{
    expect("gemm --shapes 33x48x40 --seconds 0.002 --samples 3", 0, "33x48x40", "geometric mean");
    expect("gemm --shapes 33x48x40 --seconds 0.002 --samples 3 --isa portable --order tree --dtype f16", 0, "portable",
           "8 chains, tree");
    expect("gemm --shapes 33x48x40 --seconds 0.002 --samples 3 --peer onednn", 0, "33x48x40", "oneDNN");
    cr_expect(strstr(tpt_printed, "/ peer") || strstr(tpt_printed, "onednn is skipped: "), "%s", tpt_printed);
    expect("gemm --peer blis", 2, "--peer: unknown 'blis'", "onednn");
}

Test(command, roofline)
{
    expect("roofline --layers 1 --hidden 64 --heads 4 --sequence 16 --batch 1 --steps 3 --warmup 1 --ranks 1,2 "
           "--threads 1",
           0, "loss: gradient", "peak and optimizer's bytes");
    cr_expect_not_null(
        strstr(tpt_printed, "memory: adding in place on all ranks at once, between the steps: median of "), "%s",
        tpt_printed);
    expect("roofline --layers 1 --hidden 64 --heads 4 --sequence 16 --batch 1 --steps 2 --dtype bf16 --ranks 1 "
           "--threads 2 --family llama",
           0, "rope", "limits of one rank");
}

/* Calls a step of an op that is in all steps as often; the kept samples of all ops of the optimizer in *kept. */
static double calls_a_step(int steps, int *kept)
{
    char arguments[200];
    snprintf(arguments, sizeof arguments,
             "roofline --layers 1 --hidden 64 --heads 4 --sequence 16 --batch 1 --ranks 1 --threads 1 --dtype f32 "
             "--steps %d --csv",
             steps);
    cr_assert_eq(run(arguments), 0, "%s", tpt_printed);
    double calls = 0, ignored;
    const char *row = strstr(tpt_printed, "square sum,1x64,"), *sum = strstr(tpt_printed, "optimizer,all ops,");
    cr_assert(row != NULL && sscanf(row, "square sum,1x64,%lf,%lf", &calls, &ignored) == 2, "%s", tpt_printed);
    cr_assert(sum != NULL && strstr(sum, ",false,") != NULL && sscanf(strstr(sum, ",false,"), ",false,%d,", kept) == 1,
              "%s", tpt_printed);
    return calls;
}

/* More calls than samples are held: times a step stay what they are. And a sum has the samples of its ops. */
Test(command, roofline_of_many_steps)
{
    int kept = 0;
    double few = calls_a_step(10, &kept);
    cr_expect_gt(kept, 0, "no op of the optimizer was undisturbed in 8 steps");
    cr_expect_eq(calls_a_step(1000, &kept), few);
    cr_expect_gt(few, 5, "so that 1000 steps have more calls than samples are held");
    cr_expect_gt(kept, 0);
}

/* Some calls copy a row (8 bytes an element), others add it to what is there (12). */
Test(command, roofline_counts_the_bytes_of_every_call)
{
    cr_assert_eq(run("roofline --layers 1 --hidden 64 --heads 4 --sequence 16 --batch 1 --ranks 1 --threads 1 "
                     "--dtype f32 --steps 3 --csv"),
                 0, "%s", tpt_printed);
    double intensity = 0;
    const char *row = strstr(tpt_printed, "finish,map,1x64,");
    cr_assert(row != NULL &&
                  sscanf(row, "finish,map,1x64,%*f,%*f,%*f,%*f,%*f,%*[^,],%lf", &intensity) == 1,
              "%s", tpt_printed);
    cr_expect(intensity > 1.0 / 11.9 && intensity < 1.0 / 8.1, "%g FLOPs a byte", intensity);
}

/* Every command that measures says what it dropped. */
Test(command, dropped_samples_are_told)
{
    static const char *const commands[] = {
        "roofline --layers 1 --hidden 64 --heads 4 --sequence 16 --batch 1 --steps 3 --ranks 1 --threads 1 --dtype f32",
        "linear --hidden 64 --ffn 96 --batch 1 --sequence 9 --dtype f32 --samples 2 --seconds 0.001",
        ("mlp --overlap pull --sequence-parallel --hidden 64 --ffn 96 --batch 1 --sequence 23 --dtype f32 --samples 2 "
         "--seconds 0.001"),
        "model --layers 1 --hidden 32 --steps 3 --warmup 1 --ranks 1",
        "sweep --layers 1 --hidden 32 --sequence 32 --steps 3 --batch 2 --scaling strong --ranks 1",
        "gemm --shapes 33x48x40 --seconds 0.002 --samples 3",
        "collective --ranks 1 -b 64 -e 64 -o all_gather --samples 2 --seconds 0.001",
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        expect(commands[i], 0, "were dropped because a thread was switched out", "1 % of the time");
}

Test(command, collective)
{
    expect("collective --ranks 2,3 -b 100 -e 5000 -f 7 --seconds 0.001 --samples 2 -w 1 --dtype f32,u8", 0,
           "Out of bounds values : 0 OK", "Avg bus bandwidth");
    expect("collective --ranks 2 -b 1K -e 1K -o all_reduce --seconds 0.001 --samples 2 -w 1 --link 10us,1GB/s", 0,
           "modelled link", "all_reduce");
    expect("collective --ranks 1 -b 1 -e 3 -i 1 -o all_gather --place in --samples 1 --seconds 0.001 --csv", 0,
           "all_gather", "");
    const char *row = strchr(tpt_printed, '\n');
    cr_expect(row != NULL && strchr(row + 1, '\n') != NULL && strstr(strchr(row + 1, '\n') + 1, "all_gather") == NULL,
              "one row of size 0: %s", tpt_printed);
}

Test(command, layers)
{
    static const char *const layers[] = {"linear", "linear --kind row", "mlp --activation swiglu",
                                         "attention --kv-heads 2", "block"};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        char arguments[256];
        snprintf(
            arguments, sizeof arguments,
            "%s --hidden 64 --ffn 96 --batch 2 --sequence 9 --ranks 1,2,8 --samples 2 --seconds 0.001 --warmup 1%s",
            layers[i], i % 2 == 0 ? " --sequence-parallel" : "");
        if (strncmp(layers[i], "attention", 9) == 0)
            snprintf(arguments, sizeof arguments,
                     "%s --hidden 64 --batch 2 --sequence 9 --ranks 1,2,8 --samples 2 --seconds 0.001 --warmup 1",
                     layers[i]);
        expect(arguments, 0, "reference", "yes");
        cr_expect_null(strstr(tpt_printed, "FAILED"), "%s", tpt_printed);
    }
}

/* Every algorithm has the bits of `none` and of one rank: the exit status says so. */
Test(command, overlap)
{
    static const char *const layers[] = {"linear", "linear --kind row", "mlp --activation swiglu", "attention"};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        char arguments[256];
        snprintf(
            arguments, sizeof arguments,
            "%s --overlap %s --chunks 2 --hidden 64%s --batch 1 --sequence 23 --dtype %s --samples 2 --seconds 0.001%s",
            layers[i], i == 1 ? "none,bulk,ring" : "pipeline,pull,direct,auto", i < 3 ? " --ffn 96" : "",
            i % 2 == 0 ? "f32" : "bf16", i < 3 ? " --sequence-parallel" : "");
        expect(arguments, 0, "hidden", "both");
        cr_expect_null(strstr(tpt_printed, "FAILED"), "%s", tpt_printed);
    }
    write_machine(TP_DEVICE_CPU, "bench_trace_machine.tmp");
    expect("mlp --overlap pull --link gemm --sequence-parallel --hidden 64 --batch 1 --sequence 50 --dtype f32 "
           "--samples 2 --seconds 0.001 --machine bench_trace_machine.tmp --trace bench_trace.json",
           0, "modelled link", "as fast as makes its transfers as long");
    cr_expect_null(strstr(tpt_printed, "calibrating"), "%s", tpt_printed);
    remove("bench_trace_machine.tmp");
    tpt_printed_file("bench_trace.json");
    cr_expect_not_null(strstr(tpt_printed, "\"traceEvents\""), "%s", tpt_printed);
    cr_expect_not_null(strstr(tpt_printed, "\"name\": \"gemm 0\", \"ph\": \"X\", \"pid\": 1"), "%s", tpt_printed);
    expect("mlp --overlap pull --sequence-parallel --hidden 64 --batch 1 --sequence 50 --dtype f32 --samples 2 "
           "--seconds 0.001 --trace -",
           0, "{\"displayTimeUnit\": \"ms\", \"traceEvents\"", "\n]}\n");
    cr_expect_null(strstr(tpt_printed, "# tp_bench"), "%s", tpt_printed);
    cr_expect_neq(access("-", F_OK), 0);
}

/* Beside what was measured on a modelled link stands what the simulator says of it, with the costs of a machine
 * file. */
Test(command, overlap_is_simulated_too)
{
    expect("linear --help", 0, "about 30 s", "--machine");
    expect("calibrate --ranks 2 --out bench_machine.tmp", 0, "waking up for a modelled link", "were dropped because");
    static const char *const layers[] = {"linear", "linear --kind row", "mlp --activation swiglu",
                                         "attention --heads 2"};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        char arguments[320];
        snprintf(arguments, sizeof arguments,
                 "%s --overlap none,direct,pull --link 1ms,1GB/s --hidden 64 --batch 1 --sequence 40 --dtype f32 "
                 "--samples 2 "
                 "--seconds 0.001%s --machine bench_machine.tmp --csv bench_simulated.tmp",
                 layers[i], i % 2 == 0 ? " --sequence-parallel" : "");
        expect(arguments, 0, "fused / simulated", "simulated: the plans of the pass");
        FILE *file = fopen("bench_simulated.tmp", "r");
        cr_assert_not_null(file);
        char line[1024];
        cr_assert_not_null(fgets(line, sizeof line, file));
        while (fgets(line, sizeof line, file) != NULL) {
            char *at = line;
            for (int column = 0; column < 20 && at != NULL; column++) { /* the shape has a comma or two, in quotes */
                if (*at == '"')
                    at = strchr(at + 1, '"');
                at = at != NULL ? strchr(at, ',') : NULL;
                at += at != NULL;
            }
            cr_assert_not_null(at, "%s", line);
            /* a row-parallel backward without sequence parallelism has nothing to move */
            bool moves = i != 1 || strstr(line, ",forward,") != NULL;
            cr_expect(atof(at) > (moves ? 1000 : 0), "at least one latency of 1000 us: '%.40s' in %s", at, line);
        }
        fclose(file);
    }
    expect("auto --machine bench_machine.tmp --tokens 9 --dtype f32 --link 5us,5GB/s --seconds 0.001 --samples 1 "
           "--explain",
           0, "auto / best fixed choice: worst", "pipeline 16");
    cr_expect_not_null(strstr(tpt_printed, "modelled link"), "%s", tpt_printed);
    cr_expect_not_null(strstr(tpt_printed, "noise, a second none / none"), "%s", tpt_printed);
    remove("bench_machine.tmp");
    remove("bench_simulated.tmp");
}

Test(command, overlap_of_models)
{
    expect("block --overlap ring --hidden 64 --ffn 96 --batch 1 --sequence 9 --dtype f32 --samples 2 --seconds 0.001 "
           "--sequence-parallel",
           0, "reference", "yes");
    expect("model --overlap direct --chunks 2 --layers 1 --hidden 32 --steps 3 --warmup 1 --ranks 2", 0,
           "overlap direct, chunks 2", "tokens/s");
    expect("model --overlap auto --layers 1 --hidden 32 --steps 3 --warmup 1 --ranks 1,2 --sequence-parallel", 0,
           "overlap auto", "tokens/s");
    expect("sweep --layers 1 --hidden 32 --sequence 32 --steps 3 --batch 2 --scaling strong --ranks 1,2,4 --overlap "
           "pull --chunks 2 --sequence-parallel",
           0, "overlap pull", "yes");
    cr_expect_null(strstr(tpt_printed, "FAILED"), "%s", tpt_printed);
}

Test(command, overlap_refusals)
{
    expect("mlp --overlap rign", 2, "rign", "did you mean 'ring'");
    expect("mlp --chunks 4", 2, "--chunks 4", "--overlap");
    expect("mlp --overlap none,bulk --chunks 1,4", 2, "--chunks 4", "cut nothing");
    expect("attention --overlap auto --chunks 4", 2, "--chunks 4", "auto chooses");
    expect("block --overlap bulk --chunks 4", 2, "--chunks 4", "cut nothing");
    expect("mlp --overlap ring --chunks 17", 2, "--chunks: 17", "[0, 16]");
    expect("mlp --trace x.json", 2, "--trace x.json", "--overlap");
    expect("mlp --link 5us", 2, "--link 5us", "LATENCY,BANDWIDTH");
    expect("mlp --link 11s,1e9", 2, "--link 11s,1e9", "[0, 10]");
    expect("auto --only nothing", 2, "--only: 'nothing'", "linear row 640x1280");
    expect("auto --ranks 1", 2, "--ranks", "2 to 8");
    expect("auto --ranks 2,4", 2, "--ranks", "2 to 8");
    expect("auto --link gemm", 2, "--link gemm", "--overlap");
    expect("auto --tokens 0", 2, "--tokens: 0", "[1, 1000000]");
    expect("mlp --overlap auto --machine missing.tmp", 2, "--machine", "missing.tmp");
    FILE *file = fopen("bench_some_machine.tmp", "wb");
    fputs("tp-machine 3\n", file);
    fclose(file);
    expect("mlp --overlap auto --machine bench_some_machine.tmp", 2, "--machine", "the text was cut");
    expect("plan --algorithm auto --rows 8 --cols 8 --inner 8 --ranks 2 --machine bench_some_machine.tmp", 2,
           "--machine", "the text was cut");
    write_machine(TP_DEVICE_CPU, "bench_some_machine.tmp");
    expect("plan --algorithm auto --rows 8 --cols 8 --inner 8 --ranks 2 --machine bench_some_machine.tmp", 0,
           "is of 'not measured', this is '", "times may be far");
    expect("mlp --machine bench_some_machine.tmp", 2, "--machine bench_some_machine.tmp", "--overlap auto");
    expect("mlp --overlap ring --machine bench_some_machine.tmp", 2, "--machine bench_some_machine.tmp",
           "--overlap auto");
    expect("model --machine bench_some_machine.tmp", 2, "--machine bench_some_machine.tmp", "--overlap auto");
    remove("bench_some_machine.tmp");
    expect("linear --link 5us,1 --batch 2 --sequence 64 --hidden 64", 2, "32768 bytes",
           "3.28e+04 s to cross it, at most 60 s");
    expect("model --link 5us,1", 2, "--link 5us,1", "at most 60 s");
    expect("mlp --link gemm", 2, "--link gemm", "--overlap");
    expect("model --overlap ring --link gemm", 2, "--link gemm", "linear, mlp and attention");
    expect("sweep --overlap ring,pull", 2, "2 are given", "takes 1");
    expect("collective --overlap ring", 2, "--overlap", "does not belong");
}

Test(command, model_uses_the_memory_that_was_predicted)
{
    expect("model --layers 1 --hidden 64 --steps 3 --warmup 1 --ranks 1,2,3", 0, "tokens/s", "predicts; used: peaks");
    expect("model --layers 1 --hidden 32 --steps 2 --ranks 1", 0, "tokens/s", "used: peaks");
    expect("model --model gpt2-xl --ranks 8 --dry-run", 0, "dry run", "GFLOP in all ops");
}

#define SMALL "--layers 1 --hidden 32 --sequence 32 --steps 4 --weak-steps 2 --batch 2 "

Test(command, sweep_keeps_the_bits)
{
    expect("sweep " SMALL "--ranks 1,2,4,8 --dtype f32,bf16 --threads 1,2", 0, "strong", "weak");
    cr_expect_null(strstr(tpt_printed, "FAILED"), "%s", tpt_printed);
    expect("sweep " SMALL "--ranks 1,2 --one-by-one --family llama --ffn 48 --kv-heads 2 --sequence-parallel "
                          "--microbatch 1 --dropout 0.1",
           0, "one after the other", "yes");
    expect("sweep " SMALL "--ranks 1,3 --scaling strong", 0, "strong", "reference");
}

#ifdef TPT_HAVE_CJSON
Test(command, sweep_as_json)
{
    cr_assert_eq(run("sweep " SMALL "--ranks 1,2 --json"), 0, "%s", tpt_printed);
    cJSON *root = cJSON_Parse(tpt_printed);
    cr_assert_not_null(root, "%s", tpt_printed);
    cJSON *rows = cJSON_GetObjectItem(root, "rows");
    cr_assert_eq(cJSON_GetArraySize(rows), 4);
    cJSON *row = cJSON_GetArrayItem(rows, 1);
    cr_assert_eq(cJSON_GetObjectItem(row, "ranks")->valueint, 2);
    cr_assert_str_eq(cJSON_GetObjectItem(row, "same weights")->valuestring, "yes");
    cr_assert_gt(cJSON_GetObjectItem(row, "tokens/s")->valuedouble, 0);
    cJSON_Delete(root);
}
#endif

Test(command, files)
{
    cr_assert_eq(run("sweep " SMALL "--ranks 1,2 --csv bench_rows.tmp --json bench_rows.json"), 0, "%s", tpt_printed);
    cr_assert_not_null(strstr(tpt_printed, "# tp_bench sweep"), "the table is printed too: %s", tpt_printed);
    FILE *file = fopen("bench_rows.tmp", "r");
    cr_assert_not_null(file);
    char line[1024];
    int lines = 0;
    while (fgets(line, sizeof line, file) != NULL)
        lines++;
    fclose(file);
    cr_assert_eq(lines, 5);
    cr_assert_eq(remove("bench_rows.tmp"), 0);
    cr_assert_eq(remove("bench_rows.json"), 0);
}

/* Drawn where gnuplot is, refused at once where it is not; never a half file. */
Test(command, plot)
{
    remove("bench_plot.svg");
    int status =
        run("collective --ranks 1 -b 64 -e 1K -o all_gather --samples 2 --seconds 0.001 --plot bench_plot.svg");
    bool there = system("command -v gnuplot >/dev/null 2>&1") == 0;
    cr_assert_eq(status, there ? 0 : 2, "%s", tpt_printed);
    cr_assert_eq(access("bench_plot.svg", F_OK) == 0, there);
    cr_assert_eq(system("ls bench_plot.svg.* >bench_plot.tmp 2>&1") == 0, false, "nothing is left beside it");
    remove("bench_plot.tmp");
    cr_assert(there || strstr(tpt_printed, "gnuplot is not installed") != NULL, "%s", tpt_printed);
    remove("bench_plot.svg");
}
