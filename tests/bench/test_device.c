/* tp_bench on a GPU, simulated: what it prints, what it keeps to itself, and what it says where there is none. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"
#include "tp/tp.h"

/* Two GPUs, where there are any. */
static void two_gpus(void)
{
    setenv("GPUSIM_DEVICES", "2", 1);
}

TestSuite(device, .init = two_gpus);

/* No plugin is beside the test's program, and none is where the loader looks: one line, and a status that scripts
 * see. */
Test(device, missing)
{
    static const char *const commands[] = {"gemm",      "collective", "linear",   "mlp",
                                           "attention", "block",      "model",    "sweep",
                                           "calibrate", "auto",       "roofline", "info --seconds 0.001"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char arguments[128];
        snprintf(arguments, sizeof arguments, "%s --device cuda --plugin ./no_such_plugin.so", commands[i]);
        expect(arguments, 3, "CUDA: no plugin", "no_such_plugin.so");
    }
    expect("info --seconds 0.001 --plugin ./no_such_plugin.so", 0, "backend cuda",
           "CUDA: no plugin: ./no_such_plugin.so: cannot open shared object file: No such file or directory\n");
}

Test(device, refusals)
{
    expect("gemm --device gpu", 2, "--device", "cuda");
    expect("gemm --plugin x.so", 2, "--plugin x.so", "--device cuda");
    expect("mlp --device-index 1", 2, "--device-index 1", "--device cuda");
    expect("mlp --devices 2", 2, "--devices 2", "--device cuda");
    expect("mlp --check", 2, "--check", "--device cuda");
    expect("gemm --sums fast --tf32", 2, "--tf32", "--device cuda");
    expect("gemm --device cuda --tf32", 2, "--tf32", "--sums fast");
    expect("norm --device cuda --sums fast --tf32", 2, "--tf32", "norm");
    expect("mlp --device cuda --isa avx2", 2, "--isa avx2", "cuda");
    expect("mlp --device cuda --link 5us,2GB/s", 2, "--link 5us,2GB/s", "cuda");
    expect("calibrate --device cuda --link 5us,2GB/s", 2, "--link 5us,2GB/s", "cuda");
    expect("auto --device cuda --link 5us,2GB/s", 2, "--link 5us,2GB/s", "cuda");
    expect("roofline --devices 2", 2, "--devices 2", "--device cuda");
    expect("calibrate --transport nccl", 2, "--transport nccl", "--device cuda");
}

/* Times of a GPU say nothing of the CPU. */
Test(device, a_machine_of_another_device)
{
    write_machine(TP_DEVICE_CUDA, "bench_gpu_machine.tmp");
    expect("mlp --overlap auto --machine bench_gpu_machine.tmp", 2,
           "--machine bench_gpu_machine.tmp: has times of cuda", "--device is cpu");
    expect("auto --machine bench_gpu_machine.tmp", 2, "--machine bench_gpu_machine.tmp: has times of cuda",
           "--device is cpu");
    /* plan runs nothing: it prices by what it is given. */
    expect("plan --algorithm auto --rows 4096 --cols 4096 --inner 4096 --ranks 2 --dtype bf16 --machine "
           "bench_gpu_machine.tmp",
           0, "is of 'not measured', this is '", "costs of machine 'not measured'");
    remove("bench_gpu_machine.tmp");
}

#ifdef TPT_CUDA_PLUGIN

#define SIMULATED " --device cuda --plugin '" TPT_CUDA_PLUGIN "'"

Test(device, info)
{
    expect("info --seconds 0.001 --plugin '" TPT_CUDA_PLUGIN "'", 0, "GPU 1", "simulated: its time is no speed");
    expect("info --seconds 0.001" SIMULATED, 0, "bf16 peak, GPU 0", "simulated: its time is no speed");
    expect("info --seconds 0.001" SIMULATED, 0, "f32 peak, GPU 0", "TF32 peak, GPU 0");
    expect("info --seconds 0.001" SIMULATED, 0, "NCCL", "windows, and symmetric buffers where GPUs reach each other");
    expect("info --seconds 0.001 --device-index 2" SIMULATED, 3, "no such device: device_index is 2, there are 2",
           "GPU 1");
    expect("gemm --shapes 5x5x5 --device-index 2" SIMULATED, 3, "no such device: device_index is 2, there are 2",
           "tp_bench gemm");
    expect("mlp --devices 3" SIMULATED, 3, "--devices 3", "there are 2");
    expect("gemm --shapes 5x5x5 --callers 2" SIMULATED, 2, "--callers 2", "GPU");
}

/* The column's cell in the last row of the last run, which printed CSV. "" where it is empty or not there. */
static const char *cell(const char *column)
{
    static char found[256];
    char copy[TPT_PRINTED_BYTES], *names = copy, *last = NULL, *save;
    found[0] = '\0';
    memcpy(copy, tpt_printed, sizeof copy);
    while (*names == '#')
        names = strchr(names, '\n') + 1;
    char *line = strtok_r(names, "\n", &save);
    names = line;
    for (; line != NULL; line = strtok_r(NULL, "\n", &save))
        last = line[0] == '#' || strncmp(line, "tp_bench", 8) == 0 ? last : line;
    for (; names != NULL && last != NULL; names = strchr(names, ',')) {
        names += *names == ',';
        size_t length = strlen(column);
        bool here = strncmp(names, column, length) == 0 && strchr(", (", names[length]) != NULL;
        char *end = last;
        for (bool quoted = false; *end != '\0' && (quoted || *end != ','); end++)
            quoted = quoted != (*end == '"');
        if (here) {
            snprintf(found, sizeof found, "%.*s", (int)(end - last), last);
            return found;
        }
        last = *end == ',' ? end + 1 : end;
    }
    return found;
}

static void expect_cell(const char *column, const char *value)
{
    cr_expect_str_eq(cell(column), value, "%s is '%s', not '%s':\n%s", column, cell(column), value, tpt_printed);
}

/* Right results, and no time, in every form of output. */
Test(device, gemm_shows_no_time)
{
    expect("gemm --shapes 33x48x40 --variant NN --dtype bf16" SIMULATED, 0, "simulated GPU: its time is no speed",
           "33x40x48");
    cr_expect_eq(run("gemm --shapes 33x48x40 --variant NN --dtype bf16 --csv" SIMULATED), 0, "%s", tpt_printed);
    expect_cell("#wrong", "0");
    expect_cell("isa", "sm_80");
    expect_cell("rate", "");
    expect_cell("peak", "");
    expect_cell("share", "");
    cr_expect_not_null(strstr(tpt_printed, "simulated"), "%s", tpt_printed);
    expect("gemm --shapes 33x48x40 --variant NN --dtype bf16 --json" SIMULATED, 0, "null", "its time is no speed");
    expect("gemm --shapes 24x16x40 --sums fast" SIMULATED, 0, "fast", "simulated");
    cr_expect_null(strstr(tpt_printed, "FAILED"), "%s", tpt_printed);
}

/* Whole numbers are exact in TF32; a row says where that was; of other types there is nothing to say. Layers agree with
 * the CPU as TF32 can. */
Test(device, tf32)
{
    cr_expect_eq(run("gemm --shapes 24x16x40 --variant NT --sums fast --tf32 --dtype f32 --csv" SIMULATED), 0, "%s",
                 tpt_printed);
    cr_expect_not_null(strstr(tpt_printed, "\"fast, TF32\""), "%s", tpt_printed);
    cr_expect_null(strstr(tpt_printed, "FAILED"), "%s", tpt_printed);
    cr_expect_eq(run("gemm --shapes 24x16x40 --variant NT --sums fast --tf32 --dtype bf16" SIMULATED), 0, "%s",
                 tpt_printed);
    cr_expect_null(strstr(tpt_printed, "TF32"), "%s", tpt_printed);
    expect(
        "mlp --hidden 32 --ffn 48 --batch 1 --sequence 9 --ranks 1,2 --dtype f32 --sums fast --tf32 --check" SIMULATED,
        0, "TF32", "simulated GPU");
    expect("calibrate --ranks 2 --sums fast --tf32" SIMULATED, 0, "fast sums, TF32", "gemm f32");
    expect("auto --ranks 2 --only mlp --dtype f32 --sums fast --tf32" SIMULATED, 0, "auto", "simulated");
    expect("calibrate --device cuda --tf32", 2, "--tf32", "--sums fast");
    expect("gemm --help", 0, "--tf32", "TF32");
}

/* Auto is threads where ranks share a GPU, and sums are a tree. */
Test(device, transport)
{
    expect("collective --ranks 2 --devices 2 --operation all_reduce --begin 256 --end 256 --transport nccl" SIMULATED,
           0, "nccl", "simulated");
    expect("collective --ranks 2 --devices 2 --operation all_reduce --begin 256 --end 256 --transport threads --sums "
           "fast" SIMULATED,
           0, "threads", "simulated");
    expect("collective --ranks 2 --operation all_reduce --begin 256 --end 256 --transport auto" SIMULATED, 0, "threads",
           "simulated");
    expect("collective --ranks 2 --transport nccl", 2, "--transport nccl", "--device cuda");
}

/* The sums are right either way. */
Test(device, peer_kernels)
{
    static const char *const words[] = {"auto", "always", "never"}, *const shown[] = {"GPU", "GPU, peer kernels",
                                                                                      "GPU, no peer kernels"};
    for (int i = 0; i < 3; i++) {
        char line[512];
        snprintf(line, sizeof line,
                 "collective --ranks 2 --operation all_reduce --begin 256 --end 256 --csv --peer-kernels %s" SIMULATED,
                 words[i]);
        cr_expect_eq(run(line), 0, "%s", tpt_printed);
        expect_cell("#wrong", "0");
        cr_expect_not_null(strstr(tpt_printed, shown[i]), "%s:\n%s", words[i], tpt_printed);
    }
    expect("collective --ranks 2 --peer-kernels never", 2, "--peer-kernels never", "--device cuda");
}

/* Layers agree with the CPU, and show no time. */
Test(device, layers_agree_with_the_cpu)
{
    static const char *const layers[] = {"linear", "linear --kind row", "mlp --activation swiglu",
                                         "attention --kv-heads 2"};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments,
                 "%s --hidden 32%s --batch 1 --sequence 9 --ranks 1 --dtype %s --check --csv" SIMULATED, layers[i],
                 i < 3 ? " --ffn 48" : " --heads 4", i % 2 == 0 ? "f32" : "bf16");
        cr_expect_eq(run(arguments), 0, "%s: %s", arguments, tpt_printed);
        expect_cell("forward", "");
        expect_cell("backward", "");
        expect_cell("tokens/s", "");
        expect_cell("speed-up", "");
        expect_cell("on", "\"threads, simulated GPU\"");
        double off = atof(cell("off the CPU"));
        cr_expect(cell("off the CPU")[0] != '\0' && off <= (i % 2 == 0 ? 1e-5 : 3e-2), "%s: %s", arguments,
                  tpt_printed);
    }
}

/* Ranks as threads on one GPU, and on two: the same bits. */
Test(device, ranks_have_the_same_bits)
{
    static const char *const places[] = {"--devices 1", "--devices 2 --sequence-parallel"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments,
                 "mlp %s --hidden 32 --ffn 48 --batch 1 --sequence 9 --ranks 1,2 --dtype f32 --csv" SIMULATED,
                 places[i]);
        cr_expect_eq(run(arguments), 0, "%s: %s", arguments, tpt_printed);
        expect_cell("same bits", "yes");
        expect_cell("on", i == 0 ? "\"threads, simulated GPU\"" : "\"threads, simulated GPUs\"");
    }
    expect("model --layers 1 --hidden 32 --heads 2 --batch 1 --sequence 9 --ranks 1,2 --steps 2 --check" SIMULATED, 0,
           "2 ranks: loss", "simulated GPU");
    cr_expect_null(strstr(tpt_printed, "FAILED"), "%s", tpt_printed);
    expect("collective --ranks 2 -b 1K -e 1K --place out" SIMULATED, 0, "Out of bounds values : 0 OK", "simulated GPU");
}

/* All of it runs, no time is shown, and nothing is written that auto would go by. */
Test(device, calibrate_keeps_simulated_times_to_itself)
{
    remove("machine-cuda.txt");
    expect("calibrate" SIMULATED, 0, "copy within a device", "no file was written");
    cr_expect_null(fopen("machine-cuda.txt", "rb"));
    cr_expect_null(strstr(tpt_printed, "written to"), "%s", tpt_printed);
    static const char *const ways[] = {"", " --devices 2 --sums fast", " --devices 2 --transport nccl"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments, "calibrate --csv%s" SIMULATED, ways[i]);
        cr_expect_eq(run(arguments), 0, "%s: %s", arguments, tpt_printed);
        expect_cell("figure", "\"adds, read and written\"");
        expect_cell("value", "");
        cr_expect_not_null(strstr(tpt_printed, "weight gradient f16"), "%s", tpt_printed);
    }
    expect("calibrate --out bench_gpu_machine.tmp" SIMULATED, 2, "--out bench_gpu_machine.tmp",
           "a simulated GPU's time is no speed");
    cr_expect_null(fopen("bench_gpu_machine.tmp", "rb"));
    expect("calibrate --ranks 1" SIMULATED, 2, "--ranks", "at least 2");
}

/* What is chosen is shown, by the file that is given or by what nobody measured; which fixed choice is best is not
 * known. */
Test(device, auto_chooses_and_shows_no_time)
{
    cr_expect_eq(run("auto --dtype f32 --only mlp --csv" SIMULATED), 0, "%s", tpt_printed);
    static const char *const empty[] = {"t_none",    "best",        "chunks",      "t_best",     "t_auto",
                                        "predicted", "auto / best", "auto / none", "none / none"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
        expect_cell(empty[i], "");
    expect_cell("on", "\"threads, simulated GPU\"");
    cr_expect_neq(cell("auto")[0], '\0', "%s", tpt_printed);
    write_machine(TP_DEVICE_CPU, "bench_gpu_machine.tmp");
    expect("auto --machine bench_gpu_machine.tmp" SIMULATED, 2, "--machine bench_gpu_machine.tmp: has times of cpu",
           "--device is cuda");
    write_machine(TP_DEVICE_CUDA, "bench_gpu_machine.tmp");
    expect("auto --dtype bf16 --only row --devices 2 --machine bench_gpu_machine.tmp" SIMULATED, 0,
           "is of 'not measured', this is 'gpusim 0, 2 GPUs'", "simulated GPUs");
    remove("bench_gpu_machine.tmp");
    expect("auto --only nothing" SIMULATED, 2, "--only: 'nothing'", "linear row 40x32");
    expect("auto --explain" SIMULATED, 2, "--explain", "a simulated GPU's time is no speed");
}

/* Each op of a step with its calls and its intensity, and no time; sums too are of times. */
Test(device, roofline_shows_no_time)
{
    static const char *const sides[] = {"--ranks 1 --dtype f32",
                                        "--ranks 2 --devices 2 --sequence-parallel --dtype bf16 --sums fast"};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments,
                 "roofline --layers 1 --hidden 32 --heads 4 --batch 1 --sequence 9 --steps 2 %s --csv" SIMULATED,
                 sides[i]);
        cr_expect_eq(run(arguments), 0, "%s: %s", arguments, tpt_printed);
        static const char *const empty[] = {"time", "limit", "share", "bound by", "rate", "bandwidth"};
        for (size_t j = 0; j < sizeof empty / sizeof *empty; j++)
            expect_cell(empty[j], "");
        static const char *const seen[] = {"forward,gemm NT,",     "backward,gemm TN,",     "backward,attention grad,",
                                           "optimizer,optimizer,", "optimizer,square sum,", "finish,phase,"};
        for (size_t j = 0; j < sizeof seen / sizeof *seen; j++)
            cr_expect_not_null(strstr(tpt_printed, seen[j]), "%s: no %s\n%s", arguments, seen[j], tpt_printed);
        cr_expect_null(strstr(tpt_printed, "had no place"), "%s", tpt_printed);
    }
    expect("roofline --layers 1 --hidden 32 --heads 4 --batch 1 --sequence 9 --steps 2 --dtype f32" SIMULATED, 0,
           "simulated GPU: its time is no speed", "by the GPU's events");
}

#endif
