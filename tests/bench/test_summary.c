/* bench/summary.awk: goals beside figures, from CSV files: what was disturbed is neither met nor missed. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/program.h"

static char folder[64];

static void enter_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/tp-summary-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}

static void leave_folder(void)
{
    static const char *const names[] = {"gemm.csv",      "peers-onednn.csv",    "peers-onednn-small.csv",
                                        "peers-mpi.csv", "roofline-1x1024.csv", "auto.csv",
                                        "summary.md"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(names[i]);
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(rmdir(folder), 0, "something is left in %s", folder);
}

static void write_rows(const char *name, const char *header, const char *rows)
{
    FILE *file = fopen(name, "wb");
    cr_assert_not_null(file);
    fprintf(file, "# tp_bench %s\n# commit abc, 2026-01-01, load before 0.1\n%s\n%s", name, header, rows);
    fclose(file);
}

static void summarize(void)
{
    char command[512];
    snprintf(command, sizeof command,
             "awk -v day=d -v commit=c -v folder=f -f '%s/../bench/csv.awk' -f '%s/../bench/summary.awk' *.csv "
             ">summary.md",
             TPT_TESTS_FOLDER, TPT_TESTS_FOLDER);
    cr_assert_eq(system(command), 0);
    tpt_printed_file("summary.md");
}

/* The line that begins so ends so. */
static void line(const char *begin, const char *end)
{
    const char *at = strstr(tpt_printed, begin);
    cr_assert_not_null(at, "'%s' is missing:\n%s", begin, tpt_printed);
    size_t length = strcspn(at, "\n");
    cr_expect(length > strlen(end) && strncmp(at + length - strlen(end), end, strlen(end)) == 0, "not '%s': %.*s", end,
              (int)length, at);
}

#define GEMM "layer,variant,dtype,callers,rate (GFLOP/s),share (of peak),kept (samples)"

Test(summary, products, .init = enter_folder, .fini = leave_folder)
{
    write_rows("gemm.csv", GEMM, "qkv,NT,f32,1,100,0.95,3\nqkv,NT,f32,2,200,,0\nqkv,NT,bf16,1,100,0.80,3\n"
                                 "geometric mean,of 30,f32,1,100,0.95,\ngeometric mean,of 28,f32,2,199,0.95,\n"
                                 "geometric mean,of 30,bf16,1,100,0.91,\ngeometric mean,of 30,bf16,2,190,0.95,\n");
    summarize();
    line("| GEMM, f32, 1 caller: share", "| 95.0 % | met |");
    line("| GEMM, f32, 2 callers: share", "| 95.0 % | disturbed |");
    line("| GEMM, bf16, 1 caller: share", "| 91.0 % | missed |");
    line("| GEMM, f32, callers: 2, worst shape", "| not measured | - |");
    line("| GEMM, bf16, callers: 1, worst shape", "| 80.0 % | missed |");
    line("| GEMM, f32, two callers", "| at least 1.95 | 1.99 | disturbed |");
    line("| GEMM, bf16, two callers", "| at least 1.95 | 1.90 | missed |");
}

#define ONEDNN "layer,variant,dtype,callers,kept (samples),ours (/ peer)"

Test(summary, products_beside_onednn, .init = enter_folder, .fini = leave_folder)
{
    write_rows(
        "peers-onednn.csv", ONEDNN,
        "geometric mean,of 30,f32,1,,1.25\ngeometric mean,of 30,bf16,1,,0.96\ngeometric mean,of 29,bf16,2,,1.6\n");
    write_rows("peers-onednn-small.csv", ONEDNN,
               "geometric mean,of 36,f32,1,,0.8\ngeometric mean,of 36,bf16,1,,1.6\ngeometric mean,of 30,f32,2,,1.6\n");
    summarize();
    line("| GEMM, f32, callers: 1, time / oneDNN's, geometric mean of 30 shapes |", "| at most 1.00 | 0.800 | met |");
    line("| GEMM, bf16, callers: 1, time / oneDNN's, geometric mean of 30 shapes |", "| 1.042 | missed |");
    line("| GEMM, bf16, callers: 2, time / oneDNN's, geometric mean of 30 shapes |", "| 0.625 | disturbed |");
    line("| GEMM, f32, callers: 2, time / oneDNN's, geometric mean of 30 shapes |", "| not measured | - |");
    line("| GEMM, f32, callers: 1, time / oneDNN's, geometric mean of 36 shapes of 64 to 256 tokens |",
         "| 1.250 | missed |");
    line("| GEMM, bf16, callers: 1, time / oneDNN's, geometric mean of 36 shapes of 64 to 256 tokens |",
         "| 0.625 | met |");
    line("| GEMM, f32, callers: 2, time / oneDNN's, geometric mean of 36 shapes of 64 to 256 tokens |",
         "| 0.625 | disturbed |");
}

#define MPI "size (B),operation,around,best peer / time (x),cores (distance),kept (samples)"

Test(summary, collectives, .init = enter_folder, .fini = leave_folder)
{
    write_rows(
        "peers-mpi.csv", MPI,
        "4096,all_reduce,nothing,1,near,9\n4096,all_reduce,\"written, read (net)\",4.1,near,9\n"
        "16384,all_reduce,\"written, read (net)\",5.9,near,9\n65536,all_reduce,\"written, read (net)\",9,far,9\n"
        "1048576,all_reduce,\"written, read (net)\",4.5,near,9\n4194304,all_reduce,\"written, read (net)\",,near,0\n"
        "4096,reduce_scatter,nothing,4.5,near,9\n4096,all_gather,nothing,2.9,near,9\n"
        "16777216,all_gather,nothing,1.3,near,9\n16777216,reduce_scatter,nothing,9,far,9\n");
    summarize();
    line("| all-reduce, net, 4 KiB", "| at least 4.00 | 4.10 | met |");
    line("| all-reduce, net, 16 to 256 KiB", "(worst: 16 KiB) | at least 6.00 | 5.90 | missed |");
    line("| all-reduce, net, 1 to 4 MiB", "| disturbed |");
    line("| all-reduce, net, above 4 MiB", "| not measured | - |");
    line("| reduce-scatter, alone, to 64 KiB", "| at least 4.00 | 4.50 | met |");
    line("| reduce-scatter, alone, above 1 MiB", "| disturbed |");
    line("| all-gather, alone, to 64 KiB", "| at least 3.00 | 2.90 | missed |");
    line("| all-gather, alone, above 1 MiB", "| at least 1.20 | 1.30 | met |");
}

#define ROOFLINE "dtype,phase,op,time (ms a step),limit (ms a step),share (of limit),kept (samples)"

Test(summary, ops_of_a_step, .init = enter_folder, .fini = leave_folder)
{
    write_rows("roofline-1x1024.csv", ROOFLINE,
               "f32,forward,attention,10,7,0.7,9\nf32,backward,attention grad,10,4,0.4,9\n"
               "bf16,forward,attention,10,9,0.9,0\nbf16,optimizer,optimizer,1,1.1,1.1,9\n"
               "bf16,optimizer,\"optimizer, packing\",9,8,0.89,9\nbf16,optimizer,square sum,9,1,0.1,9\n");
    summarize();
    line("| attention core, f32, forward", "| 60.0 % | 70.0 % | met |");
    line("| attention core, f32, backward", "| 50.0 % | 40.0 % | missed |");
    line("| attention core, bf16, forward", "| 50.0 % | 90.0 % | disturbed |");
    line("| AdamW with packing, bf16, 1x1024", "| 90.0 % | 91.0 % | met |");
    line("| AdamW with packing, f32, 1x1024", "| 90.0 % | not measured | - |");
}

#define AUTO "layer,auto (chose),auto / best,auto / none,none / none,surely / best"

/* All passes together are judged, and what tells `none` from itself is noise. */
Test(summary, choices_of_auto, .init = enter_folder, .fini = leave_folder)
{
    write_rows("auto.csv", AUTO,
               "mlp,pull 2; none,1.2,1.01,1.3,1.05\nmlp,none,1.0,1.04,1.0,1.0\nmlp,bulk,1.0,0.9,1.0,0.9\n"
               "linear,,1.0,1.03,1.0,1.0\n");
    summarize();
    line("| `auto`, time / time of the best fixed choice, 4 points: median", "| 1.000 | met |");
    line("| `auto`, the same: worst (3 of 4 points are within 1.10; the least of a point's passes is at most 1.050)",
         "| 1.200 | missed |");
    line("| `auto`, time / time of `none`, the 2 points where it runs something else: worst (where it is `none`: "
         "1.040)",
         "| 1.010 | met |");
    write_rows("auto.csv", AUTO, "mlp,none; none,1.0,1.0,1.0,1.0\nmlp,none; pull 1,1.2,1.1,1.3,1.11\n");
    summarize();
    line("| `auto`, the same: worst (1 of 2 points are within 1.10", "| 1.200 | missed |");
    line("| `auto`, time / time of `none`, the 1 points where", "| 1.100 | missed |");
}
