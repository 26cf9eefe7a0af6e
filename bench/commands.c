/* The command table, and what commands share. */
#include "command.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Above this the figures are worth less. */
#define BUSY_LOAD 0.3

const bench_command bench_command_table[] = {
    {"info", BENCH_INFO, bench_command_info, "the machine and its limits, and what is built in",
     "Prints processor, cores, caches and instruction sets; measures the peak of multiply-adds a core (and checks\n"
     "it against clock x operations a cycle) and the bandwidth of memory; lists what this build has and what it has\n"
     "not.\n",
     "  tp_bench info\n"
     "  tp_bench info --json machine.json\n"},
    {"gemm", BENCH_GEMM, bench_command_gemm, "matrix products in the shapes and sum orders of layers",
     "Each shape is tokens x out x in of a layer: NT is its forward, NN its input gradient, TN its weight gradient.\n"
     "Inner sums that tensor parallelism would split are computed as eight chains and their tree, others as one\n"
     "chain. Samples alternate with the peak loop; share is of that peak.\n",
     "  tp_bench gemm\n"
     "  tp_bench gemm --dtype bf16 --callers 2 --csv gemm.csv\n"
     "  tp_bench gemm --shapes 512x2304x768,64x1536x768 --variant NT --order chain\n"
     "  tp_bench gemm --peer onednn\n"},
    {"collective", BENCH_COLLECTIVE, bench_command_collective,
     "collectives between ranks, in the columns of nccl-tests",
     "size is the total bytes S of the operation; algbw = S / time; busbw = algbw x 2(n-1)/n (all_reduce), (n-1)/n\n"
     "(reduce_scatter, all_gather, all_to_all) or 1 (broadcast, sendrecv). #wrong counts elements that differ from\n"
     "exact sums, in a pass of its own.\n"
     "--peer: the same in MPI processes on the same cores, sample by sample in turns, alone and net of writing the\n"
     "input before and reading the output after.\n",
     "  tp_bench collective\n"
     "  tp_bench collective --ranks 2,4 -b 1K -e 16M -f 4 -o all_reduce -d bf16 --place in\n"
     "  tp_bench collective --peer openmpi,mpich -b 4K -e 64M\n"
     "  tp_bench collective --operation all_reduce --algorithm one-shot,two-shot --plot all_reduce.svg\n"},
    {"linear", BENCH_LINEAR, bench_command_layer, "a linear layer, forward and backward",
     "Times forward and backward (input and weight gradients) on each degree, and compares all results bit for bit\n"
     "with those of the first degree.\n"
     "--overlap measures in turns the GEMMs alone (t_gemm), the transfers alone (t_comm), the pass without overlap\n"
     "(t_none) and with it (t_fused): hidden = (t_gemm + t_comm - t_fused) / min(t_gemm, t_comm), beside the bound\n"
     "of that many chunks; share = t_gemm / t_fused where no link is modelled. With --link simulated is what the\n"
     "simulator says of the plans that the pass ran: with costs of --machine or of a calibration made before, and\n"
     "GEMMs as fast as t_gemm. Bits are compared with those of none and of one rank.\n",
     "  tp_bench linear\n"
     "  tp_bench linear --overlap ring,pull --chunks 4,8 --link gemm --sequence-parallel --hidden 1024 "
       "--ffn 4096 --batch 8\n"
     "  tp_bench linear --kind row --hidden 768 --ffn 3072 --batch 4 --sequence 128 --ranks 1,2\n"},
    {"mlp", BENCH_MLP, bench_command_layer, "a feed-forward layer, forward and backward",
     "As linear.\n",
     "  tp_bench mlp --activation swiglu --dtype bf16\n"
     "  tp_bench mlp --overlap direct --sequence-parallel\n"
     "  tp_bench mlp --model gpt2 --ranks 1,2 --threads 1\n"},
    {"attention", BENCH_ATTENTION, bench_command_layer, "an attention layer, forward and backward",
     "As linear.\n",
     "  tp_bench attention --hidden 768 --heads 12 --sequence 1024\n"
     "  tp_bench attention --model llama3-8b --batch 1 --sequence 256\n"},
    {"norm", BENCH_NORM, bench_command_layer, "LayerNorm, or RMSNorm with --family llama, forward and backward",
     "As linear. bandwidth: of the tensors that must be read and written, forward 2, backward 3.\n",
     "  tp_bench norm --hidden 768\n"
     "  tp_bench norm --family llama --hidden 4096 --batch 8 --sequence 1024 --device cuda\n"},
    {"block", BENCH_BLOCK, bench_command_layer, "a transformer block, forward and backward",
     "As linear.\n",
     "  tp_bench block --model gpt2 --sequence 256 --ranks 1,2\n"
     "  tp_bench block --overlap direct --sequence-parallel\n"},
    {"model", BENCH_MODEL, bench_command_model, "one training step of a whole model, by phases, and its memory",
     "Times forward, backward, finishing of gradients and optimizer; tokens/s; share of the measured peak.\n"
     "--dry-run prints sizes predicted by pure functions and measures nothing; without it the prediction stands\n"
     "beside what was used. --peer torch: PyTorch takes the same steps on the same weights and tokens in a process\n"
     "of its own, in turns with ours; losses and gradients' norms of both are compared; torch / step is its time by\n"
     "ours, of steps that were clean on both sides, where both use as many cores.\n",
     "  tp_bench model\n"
     "  tp_bench model --model gpt2 --layers 2 --batch 1 --sequence 256 --ranks 1,2\n"
     "  tp_bench model --model gpt2-xl --ranks 8 --dry-run\n"
     "  tp_bench model --peer torch --model gpt2 --batch 4 --sequence 256 --ranks 2 --threads 1 --dtype f32,bf16\n"},
    {"sweep", BENCH_SWEEP, bench_command_sweep,
     "train a model on text at several degrees: scaling, and whether the bits are the same",
     "Trains the same decoder for some steps at each tensor-parallel degree. Strong scaling: the same batch on all.\n"
     "Weak scaling: --batch sequences a rank. Speed-up is against the first degree's tokens/s; efficiency is\n"
     "speed-up / min(ranks, cores). Rows with more ranks than cores are labelled: they test, they don't scale, and\n"
     "they are not plotted. \"same\" compares every step's loss and all weights, gathered, with those of degree 1.\n",
     "  tp_bench sweep\n"
     "  tp_bench sweep --text book.txt --steps 100 --ranks 1,2 --scaling strong\n"
     "  tp_bench sweep --model gpt2 --layers 2 --batch 2 --sequence 256 --steps 5 --dtype f32,bf16 "
       "--plot scaling.svg\n"},
    {"roofline", BENCH_ROOFLINE, bench_command_roofline,
     "every op and phase of a training step as a share of its own limit",
     "Trains a model for some steps and times each op where it runs. An op's limit is its FLOPs at the measured\n"
     "peak, or its bytes (each operand once) at the measured bandwidth of the cache level that they fit in,\n"
     "whichever takes longer. Below the ops of a phase stand their sum, what collectives took, and the phase; below\n"
     "all phases the step against the sum of limits, and against FLOPs over peak plus the optimizer's bytes at\n"
     "memory's bandwidth.\n"
     "--device cuda: by the GPU's events around each op and phase; the peak is cuBLASLt's best large product, the\n"
     "bandwidth that of a copy within the GPU.\n",
     "  tp_bench roofline --model gpt2 --layers 2 --batch 4 --sequence 256\n"
     "  tp_bench roofline --model gpt2 --dtype bf16 --ranks 2 --plot roofline.svg\n"
     "  tp_bench roofline --device cuda --sums fast --model gpt2 --batch 8 --sequence 1024 --dtype bf16\n"},
    {"plan", BENCH_PLAN, bench_command_plan,
     "plans of overlapped collectives and GEMMs: proven, priced and drawn without running",
     "Makes each plan, counts what it moves, and simulates it: compute inline, lanes as queues, links with latency\n"
     "and bandwidth. sent is a rank's bytes; workspace is a rank's bytes of gathered rows and partial sums, peak\n"
     "(--verify) the most of them that can be alive at once; hidden = (gemm + comm - time) / min(gemm, comm). Costs\n"
     "are --gemm-ms, --bytes and --link, or, with --machine or auto, those of a shape. docs/overlap.md explains the\n"
     "algorithms and the pictures.\n",
     "  tp_bench plan --algorithm all --chunks 1,4,16 --verify\n"
     "  tp_bench plan --algorithm ring --pattern chain --ranks 4 --chunks 2 --svg ring.svg --trace ring.json\n"
     "  tp_bench plan --algorithm pull --ranks 2 --chunks 2 --print\n"
     "  tp_bench plan --algorithm auto --machine machine.txt --rows 2048 --cols 1536 --inner 768 --ranks 2\n"},
    {"calibrate", BENCH_CALIBRATE, bench_command_calibrate,
     "measure what the choice of an overlap needs to know, and write it to a file",
     "All ranks work at once: GEMM rates by rows, copying out of a peer's memory, adds, fixed costs of calls,\n"
     "transfers and waits. The file is text; `plan --machine FILE` and TP_OVERLAP_AUTO read it. --link puts a\n"
     "modelled link between ranks into the file.\n"
     "--device cuda: of ranks on GPUs, timed by their events: products whose weights come out of memory, launches,\n"
     "waits of streams for events, copies within a GPU and out of a peer's. The file is machine-cuda.txt, and only\n"
     "contexts on GPUs take it. On simulated GPUs all of it runs, and nothing is written.\n",
     "  tp_bench calibrate\n"
     "  tp_bench calibrate --ranks 2 --out machine.txt\n"
     "  tp_bench calibrate --device cuda --devices 2 --sums fast\n"},
    {"auto", BENCH_AUTO, bench_command_auto, "what --overlap auto chooses, against every fixed choice and against none",
     "Runs a grid of linear, feed-forward and attention layers, forward and backward, without a link and on a quick\n"
     "and a slow modelled one (--link: on that one). auto / best: its time over that of the best fixed choice; auto\n"
     "/ none: over none's; none / none: a second layer with none, which is noise. auto goes by --machine, or by a\n"
     "calibration made before. Several plans of one pass are parted by semicolons. --device cuda: larger layers,\n"
     "timed by the GPUs' events, and no modelled link; on simulated GPUs auto goes by the figures of a GPU that\n"
     "nobody measured, and only what it chose is shown.\n",
     "  tp_bench auto --device cuda --devices 2 --machine machine-cuda.txt --dtype bf16\n"
     "  tp_bench auto\n"
     "  tp_bench auto --tokens 64,1024 --dtype f32 --link 5us,2GB/s --explain\n"
     "  tp_bench auto --machine machine.txt --csv auto.csv\n"},
    {NULL, 0, NULL, NULL, NULL, NULL},
};

static int stop(bench_call *call, int status, const char *format, va_list arguments)
{
    vsnprintf(call->message, sizeof call->message, format, arguments);
    return status;
}

int bench_refuse(bench_call *call, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int status = stop(call, BENCH_USAGE, format, arguments);
    va_end(arguments);
    return status;
}

int bench_fail(bench_call *call, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int status = stop(call, BENCH_FAILED, format, arguments);
    va_end(arguments);
    return status;
}

void bench_begin(bench_call *call, const bench_column *columns, int count)
{
    const char *command = call->table.command;
    bench_table_init(&call->table, command, columns, count);
    char *machine = call->table.machine;
    bench_machine_line(&call->machine, (tp_isa)call->options.isa, machine, sizeof call->table.machine);
    if (call->gpu.usable)
        snprintf(machine, sizeof call->table.machine, "%.200s (sm_%d%d, %.1f GB%s), %.100s", call->gpu.name,
                 call->gpu.major, call->gpu.minor, (double)call->gpu.memory_bytes / 1e9,
                 call->gpu.simulated ? ", simulated" : "", call->machine.processor);
    if (call->machine.load > BUSY_LOAD)
        bench_note(&call->table, "the machine was not idle: %.1f threads wanted to run in the minute before",
                   call->machine.load);
    char name[sizeof call->costs.name];
    bench_costs_name(call, name, sizeof name);
    if (call->options.machine_file != NULL && strcmp(name, call->costs.name) != 0)
        bench_note(&call->table, "--machine %.200s is of '%s', this is '%s': its times may be far from this machine's",
                   call->options.machine_file, call->costs.name, name);
}

void bench_costs_name(const bench_call *call, char *text, size_t bytes)
{
    int64_t gpus = call->options.devices > 1 ? call->options.devices : 1;
    if (bench_on_gpu(call))
        snprintf(text, bytes, "%.50s, %lld GPU%s%s%s", call->gpu.name, (long long)gpus, gpus > 1 ? "s" : "",
                 call->options.sums == TP_SUM_FAST ? ", fast sums" : "", call->options.tf32 ? ", TF32" : "");
    else
        bench_machine_name(&call->machine, text, bytes);
}

int bench_load_costs(bench_call *call)
{
    if (call->options.machine_file != NULL && tp_machine_load(call->options.machine_file, &call->costs) != TP_OK)
        return bench_refuse(call, "--machine: %s", tp_last_message());
    return BENCH_OK;
}

void bench_check_failed(bench_call *call, const char *format, ...)
{
    char text[BENCH_NOTE / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    call->table.failed_checks++;
    bench_note(&call->table, "CHECK FAILED: %s", text);
}

void bench_note_samples(bench_call *call, int64_t kept, int64_t total)
{
    bench_note(&call->table,
               "medians of samples; %lld of %lld were dropped because a thread was switched out during them and lost "
               "%g %% of the time or more (%g %% of samples of %g s and longer), or, between ranks, because their "
               "cores were not at the row's distance (a figure without any clean sample uses them all)",
               (long long)(total - kept), (long long)total, 100 * BENCH_LOST, 100 * BENCH_LONG_LOST,
               BENCH_LONG_SECONDS);
}

void bench_note_kept(bench_call *call, int kept_column, int total_column)
{
    int disturbed = 0, rows = 0;
    int64_t kept = 0, total = 0;
    for (int row = 0; row < call->table.rows; row++) {
        const bench_cell *cell = bench_table_cell(&call->table, row, kept_column);
        if (cell->kind != BENCH_CELL_INTEGER)
            continue;
        rows++;
        disturbed += cell->integer == 0;
        kept += cell->integer;
        total += bench_table_cell(&call->table, row, total_column)->integer;
    }
    if (rows > 0)
        bench_note_samples(call, kept, total);
    if (disturbed > 0)
        bench_note(&call->table,
                   "%d of %d rows have no clean sample: other work took the cores, and their figures show it",
                   disturbed, rows);
}
