/* Every option of tp_bench, in the order of the help. */
#include "options.h"

/* By tp_dtype. */
const char *const bench_dtype_names[] = {"", "f32", "bf16", "f16", "i32", "i64", "u8", NULL};
/* By tp_isa. */
const char *const bench_isa_names[] = {"auto", "portable", "avx2", "avx512", "avx512_bf16", NULL};
/* By tp_device, tp_sum_order. */
const char *const bench_device_names[] = {"cpu", "cuda", NULL};
const char *const bench_sums_names[] = {"tree", "fast", NULL};
const char *const bench_peer_names[] = {"", "onednn", NULL};
const char *const bench_model_peer_names[] = {"", "torch", NULL};
/* By tp_transport. */
const char *const bench_transport_names[] = {"auto", "threads", "nccl", NULL};
/* By tp_peer_kernels. */
const char *const bench_peer_kernels_names[] = {"auto", "always", "never", NULL};
const char *const bench_variant_names[] = {"NT", "NN", "TN", NULL};
const char *const bench_operation_names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                             "all_to_all", "sendrecv",       NULL};
/* By tp_all_reduce_algorithm. */
const char *const bench_algorithm_names[] = {"auto", "one-shot", "two-shot", "ring", NULL};
/* By tp_reduce_op. */
const char *const bench_reduce_names[] = {"sum", "max", "min", NULL};
const char *const bench_place_names[] = {"out", "in", NULL};
/* By bench_mpi_library. */
const char *const bench_mpi_names[] = {"openmpi", "mpich", NULL};
/* By tp_activation. */
const char *const bench_activation_names[] = {"gelu", "gelu-tanh", "relu", "relu2", "swiglu", "geglu", NULL};
/* By tp_linear_kind. */
const char *const bench_kind_names[] = {"column", "row", "replicated", NULL};
/* By tp_model_family. */
const char *const bench_family_names[] = {"gpt2", "llama", NULL};
/* By tp_overlap. */
const char *const bench_overlap_names[] = {"none", "bulk", "ring", "pipeline", "pull", "direct", "auto", NULL};
/* By tp_pattern. */
const char *const bench_pattern_names[] = {
#define PATTERN_WORD(name, word) word,
    TP_PATTERN_LIST(PATTERN_WORD)
#undef PATTERN_WORD
        NULL};
static const char *const scaling_names[] = {"strong", "weak", "both", NULL};
static const char *const order_names[] = {"layer", "chain", "tree", NULL};

#define AT(field) offsetof(bench_options, field)
#define MAX_COUNT 1099511627776.0 /* 2^40: products of two sizes stay within int64_t times a dtype's size */
#define RANKED (BENCH_COLLECTIVE | BENCH_LAYERS | BENCH_MODELS)
#define COSTS (BENCH_CALIBRATE | BENCH_AUTO) /* what auto goes by */
#define SHAPED (BENCH_LAYERS | BENCH_MODELS)
#define OVERLAPPED (BENCH_LINEAR | BENCH_MLP | BENCH_ATTENTION)
#define ON_DEVICE (BENCH_INFO | BENCH_GEMM | RANKED | COSTS)
#define TIMED (BENCH_ALL & ~(BENCH_PLAN | BENCH_CALIBRATE))

const bench_option bench_option_table[] = {
    {"ranks", 't', BENCH_OPTION_INTEGERS, AT(ranks), RANKED | BENCH_PLAN | BENCH_CALIBRATE | BENCH_AUTO, 1, 64, NULL,
     "1,2,4,8", "tensor-parallel degrees (thread ranks)"},
    {"threads", 0, BENCH_OPTION_INTEGER, AT(threads),
     BENCH_LAYERS | BENCH_MODEL | BENCH_ROOFLINE | BENCH_GEMM | BENCH_AUTO, 1, 256, NULL, "N",
     "compute threads a rank (gemm: a caller); default: cores / ranks, at least 1 (gemm: 1)"},
    {"threads", 0, BENCH_OPTION_INTEGERS, AT(thread_counts), BENCH_SWEEP, 1, 256, NULL, "1,2",
     "compute threads a rank; several: each degree with each of them (weak scaling: the first); default 1"},
    {"isa", 0, BENCH_OPTION_CHOICE, AT(isa), RANKED | BENCH_GEMM | BENCH_AUTO, 0, 0, bench_isa_names, "NAME",
     "instruction set; forcing one that the machine lacks is refused"},
    {"device", 0, BENCH_OPTION_CHOICE, AT(device), ON_DEVICE, 0, 0, bench_device_names, "NAME",
     "cpu or cuda: ranks are threads of this process"},
    {"devices", 0, BENCH_OPTION_INTEGER, AT(devices), RANKED | COSTS, 1, 64, NULL, "N",
     "GPUs that ranks are dealt out over, from --device-index on; default 1"},
    {"device-index", 0, BENCH_OPTION_INTEGER, AT(device_index), ON_DEVICE, 0, 1023, NULL, "N",
     "which GPU, the first of several; default 0"},
    {"plugin", 0, BENCH_OPTION_TEXT, AT(plugin), ON_DEVICE, 0, 0, NULL, "FILE",
     "file of the CUDA backend; default libtp_cuda.so beside the program; libtp_cuda_sim.so runs on simulated GPUs, "
     "whose time is not shown"},
    {"sums", 0, BENCH_OPTION_CHOICE, AT(sums), RANKED | COSTS | BENCH_GEMM, 0, 0, bench_sums_names, "NAME",
     "tree (the same bits on every layout) or fast (on a GPU: cuBLASLt); default tree"},
    {"tf32", 0, BENCH_OPTION_FLAG, AT(tf32), (SHAPED & ~BENCH_NORM) | BENCH_GEMM | COSTS, 0, 0, NULL, NULL,
     "with --device cuda --sums fast: f32 products in TF32 (ten bits of mantissa); the peak beside them is TF32's; "
     "calibrate: f32's curves"},
    {"transport", 0, BENCH_OPTION_CHOICE, AT(transport), RANKED | COSTS, 0, 0, bench_transport_names, "NAME",
     "between GPUs: threads (ranks read each other's memory), nccl, or auto (nccl with --sums fast and a GPU a rank); "
     "default auto"},
    {"peer-kernels", 0, BENCH_OPTION_CHOICE, AT(peer_kernels), RANKED | COSTS, 0, 0, bench_peer_kernels_names, "NAME",
     "small all-reduces between GPUs in one kernel a rank: auto (where each rank has a GPU), always, or never (for "
     "profilers that run one kernel at a time)"},
    {"check", 0, BENCH_OPTION_FLAG, AT(check), BENCH_LAYERS | BENCH_MODEL, 0, 0, NULL, NULL,
     "with --device cuda: compare with what the CPU makes of it, within tolerances"},
    {"seed", 0, BENCH_OPTION_INTEGER, AT(seed), RANKED, 0, 9e15, NULL, "N", "seed of weights, inputs and dropout"},

    {"model", 0, BENCH_OPTION_TEXT, AT(model), SHAPED, 0, 0, NULL, "NAME",
     "a published shape: gpt2, gpt2-medium, gpt2-xl, llama3-8b, ... (an unknown name lists the nearest)"},
    {"family", 0, BENCH_OPTION_CHOICE, AT(family), BENCH_MODELS | BENCH_NORM | BENCH_BLOCK, 1, 0, bench_family_names,
     "NAME", "what the parts are like when no --model is given; default gpt2"},
    {"layers", 0, BENCH_OPTION_INTEGER, AT(layers), BENCH_MODELS, 1, 10000, NULL, "N",
     "transformer blocks: cuts a preset's depth"},
    {"hidden", 0, BENCH_OPTION_INTEGER, AT(hidden), SHAPED, 1, 1e6, NULL, "N", "features of the residual stream"},
    {"heads", 0, BENCH_OPTION_INTEGER, AT(heads), BENCH_ATTENTION | BENCH_BLOCK | BENCH_MODELS, 1, 65536, NULL, "N",
     "query heads"},
    {"kv-heads", 0, BENCH_OPTION_INTEGER, AT(kv_heads), BENCH_ATTENTION | BENCH_BLOCK | BENCH_MODELS, 1, 65536, NULL,
     "N", "key and value heads (grouped queries); default: heads"},
    {"ffn", 0, BENCH_OPTION_INTEGER, AT(ffn), SHAPED & ~(BENCH_ATTENTION | BENCH_NORM), 1, 4e6, NULL, "N",
     "width of the feed-forward layer; linear: the other dimension"},
    {"activation", 0, BENCH_OPTION_CHOICE, AT(activation), BENCH_MLP | BENCH_BLOCK | BENCH_MODELS, 1, 0,
     bench_activation_names, "NAME",
     "gelu gelu-tanh relu relu2 swiglu geglu"},
    {"kind", 0, BENCH_OPTION_CHOICE, AT(kind), BENCH_LINEAR, 1, 0, bench_kind_names, "NAME",
     "column, row or replicated; default: column"},
    {"window", 0, BENCH_OPTION_INTEGER, AT(window), BENCH_ATTENTION | BENCH_BLOCK, 1, 1e9, NULL, "N",
     "sliding window of the attention"},
    {"vocabulary", 0, BENCH_OPTION_INTEGER, AT(vocabulary), BENCH_MODELS, 2, 1e8, NULL, "N",
     "tokens; a text needs 256"},
    {"positions", 0, BENCH_OPTION_INTEGER, AT(positions), BENCH_MODELS, 1, 1e9, NULL, "N",
     "longest sequence; default: --sequence"},
    {"batch", 0, BENCH_OPTION_INTEGER, AT(batch), SHAPED, 1, 1e6, NULL, "N", "sequences a step"},
    {"sequence", 0, BENCH_OPTION_INTEGER, AT(sequence), SHAPED, 1, 1e8, NULL, "N", "tokens a sequence"},
    {"microbatch", 0, BENCH_OPTION_INTEGER, AT(microbatch), BENCH_SWEEP, 1, 1e6, NULL, "N",
     "sequences a forward and backward; default: --batch"},
    {"dtype", 'd', BENCH_OPTION_CHOICES, AT(dtypes), BENCH_ALL & ~(BENCH_INFO | BENCH_CALIBRATE), 0, 0,
     bench_dtype_names, "NAME,...",
     "storage types: f32 bf16 f16 (collective: i32 i64 u8 too)"},
    {"sequence-parallel", 0, BENCH_OPTION_FLAG, AT(sequence_parallel), SHAPED, 0, 0, NULL, NULL,
     "shard tokens where tensor parallelism would replicate them"},
    {"dropout", 0, BENCH_OPTION_REAL, AT(dropout), SHAPED & ~BENCH_NORM, 0, 0.99, NULL, "P",
     "dropout probability; default 0 (linear: not of --kind column)"},
    {"text", 0, BENCH_OPTION_TEXTS, AT(text), BENCH_MODELS, 0, 0, NULL, "FILE",
     "training text or .bin tokens, repeatable; default: /usr/share/common-licenses as one stream"},

    {"steps", 0, BENCH_OPTION_INTEGER, AT(steps), BENCH_MODELS, 2, 4096, NULL, "N",
     "optimizer steps, warm-up included; default 20 (model, roofline: 10)"},
    {"weak-steps", 0, BENCH_OPTION_INTEGER, AT(weak_steps), BENCH_SWEEP, 2, 4096, NULL, "N",
     "steps of a weak-scaling row, whose batch is --batch times ranks; default 5"},
    {"lr", 0, BENCH_OPTION_REAL, AT(learning_rate), BENCH_MODELS, 1e-30, 100, NULL, "X",
     "learning rate of AdamW; default 0.001, with --peer torch 0.0001"},
    {"scaling", 0, BENCH_OPTION_CHOICE, AT(scaling), BENCH_SWEEP, 1, 0, scaling_names, "KIND",
     "strong (same work), weak (same work a rank) or both"},
    {"one-by-one", 0, BENCH_OPTION_FLAG, AT(one_by_one), BENCH_SWEEP, 0, 0, NULL, NULL,
     "train the degrees one after the other: less memory, but slow changes of the machine enter the comparison"},
    {"dry-run", 0, BENCH_OPTION_FLAG, AT(dry_run), BENCH_MODEL, 0, 0, NULL, NULL,
     "print predicted sizes and work; measure nothing"},

    {"shapes", 0, BENCH_OPTION_TEXT, AT(shapes), BENCH_GEMM, 0, 0, NULL, "MxNxK,...",
     "tokens x out x in; default: the 30 products of GPT-2 layers"},
    {"variant", 0, BENCH_OPTION_CHOICES, AT(variants), BENCH_GEMM, 0, 0, bench_variant_names, "NT,NN,TN",
     "forward, input gradient, weight gradient; default all"},
    {"callers", 0, BENCH_OPTION_INTEGERS, AT(callers), BENCH_GEMM, 1, 64, NULL, "1,2",
     "threads that multiply at the same time"},
    {"order", 0, BENCH_OPTION_CHOICE, AT(order), BENCH_GEMM, 1, 0, order_names, "NAME",
     "inner sums: layer (as its layer needs it), chain, tree"},
    {"pack-in-call", 0, BENCH_OPTION_FLAG, AT(pack_in_call), BENCH_GEMM, 0, 0, NULL, NULL,
     "pack weights in every call (default: once before, as training does once a step)"},

    {"peer", 0, BENCH_OPTION_CHOICE, AT(peer), BENCH_GEMM, 0, 0, bench_peer_names, "onednn",
     "measure this library too, in turns, one thread a caller, where the build found it; its column and the ratio"},
    {"peer", 0, BENCH_OPTION_CHOICE, AT(peer), BENCH_MODEL, 0, 0, bench_model_peer_names, "torch",
     "the same steps by PyTorch on the CPU, on the same weights and tokens, in turns; losses and gradients' norms are "
     "compared; GPT-2 in f32, bf16"},
    {"python", 0, BENCH_OPTION_TEXT, AT(python), BENCH_MODEL, 0, 0, NULL, "FILE",
     "with --peer: an interpreter that has PyTorch; default $TP_BENCH_PYTHON, else python3"},
    {"peer-settings", 0, BENCH_OPTION_TEXT, AT(peer_settings), BENCH_MODEL, 0, 0, NULL, "NAME,...",
     "with --peer: compiled or eager; of bf16 autocast (f32 weights) or master (bf16 weights, f32 masters); default: "
     "compiled, master if this PyTorch can"},
    {"patience", 0, BENCH_OPTION_REAL, AT(patience), BENCH_MODEL, 0.1, 3600, NULL, "X",
     "with --peer: seconds that its answer may take; default 300"},

    {"begin", 'b', BENCH_OPTION_BYTES, AT(begin_bytes), BENCH_COLLECTIVE, 1, MAX_COUNT, NULL, "BYTES",
     "smallest size; default 1K"},
    {"end", 'e', BENCH_OPTION_BYTES, AT(end_bytes), BENCH_COLLECTIVE, 1, MAX_COUNT, NULL, "BYTES",
     "largest size; default 4M"},
    {"factor", 'f', BENCH_OPTION_REAL, AT(factor), BENCH_COLLECTIVE, 1.01, 1e6, NULL, "X",
     "from size to size; default 4"},
    {"increment", 'i', BENCH_OPTION_BYTES, AT(increment_bytes), BENCH_COLLECTIVE, 1, MAX_COUNT, NULL, "BYTES",
     "instead of --factor"},
    {"operation", 'o', BENCH_OPTION_CHOICES, AT(operations), BENCH_COLLECTIVE, 0, 0, bench_operation_names, "NAME,...",
     "all_reduce reduce_scatter all_gather broadcast all_to_all sendrecv; default all"},
    {"algorithm", 0, BENCH_OPTION_CHOICES, AT(algorithms), BENCH_COLLECTIVE, 0, 0, bench_algorithm_names, "NAME,...",
     "of all_reduce: auto one-shot two-shot ring (ring gives up the fixed order of sums)"},
    {"reduce", 'r', BENCH_OPTION_CHOICE, AT(reduce), BENCH_COLLECTIVE, 1, 0, bench_reduce_names, "NAME",
     "sum, max or min"},
    {"place", 0, BENCH_OPTION_CHOICES, AT(places), BENCH_COLLECTIVE, 0, 0, bench_place_names, "out,in",
     "out of place, in place; default both"},
    {"peer", 0, BENCH_OPTION_CHOICES, AT(peers), BENCH_COLLECTIVE, 0, 0, bench_mpi_names, "NAME,...",
     "openmpi mpich: the same collectives in two processes on the same cores, sample by sample in turns; f32, 2 ranks"},
    {"near", 0, BENCH_OPTION_REAL, AT(near_seconds), BENCH_COLLECTIVE, 1e-3, 36000, NULL, "SECONDS",
     "with --peer: wait until the two cores share an L3 cache, as a host moves virtual ones about, that long in all"},
    {"iterations", 'n', BENCH_OPTION_INTEGER, AT(iterations), BENCH_COLLECTIVE, 1, 1e6, NULL, "N",
     "calls a sample; default: as many as take 0.2 ms"},
    {"overlap", 0, BENCH_OPTION_CHOICES, AT(overlaps), SHAPED & ~(BENCH_NORM | BENCH_ROOFLINE), 0, 0,
     bench_overlap_names, "NAME,...",
     "none bulk ring pipeline pull direct auto: of collectives with GEMMs; linear, mlp, attention: how much of the "
     "communication it hides"},
    {"chunks", 0, BENCH_OPTION_INTEGERS, AT(chunk_counts), SHAPED & ~(BENCH_NORM | BENCH_ROOFLINE), 0, 16, NULL, "4,8",
     "of --overlap: pieces that a rank's tokens are cut into; 0: the algorithm's default"},
    {"tokens", 0, BENCH_OPTION_INTEGERS, AT(token_counts), BENCH_AUTO, 1, 1e6, NULL, "40,200",
     "tokens of a pass; default 40,200,520"},
    {"link", 0, BENCH_OPTION_TEXT, AT(link), (RANKED & ~BENCH_ROOFLINE) | BENCH_AUTO, 0, 0, NULL, "LAT,BW",
     "put a modelled link between ranks: 5us,2GB/s, or seconds and bytes/s; gemm with --overlap: as long as the GEMMs; "
     "rows are labelled"},
    {"machine", 0, BENCH_OPTION_TEXT, AT(machine_file), (SHAPED & ~(BENCH_NORM | BENCH_ROOFLINE)) | BENCH_AUTO, 0, 0,
     NULL, "FILE",
     "what --overlap auto goes by: a file that calibrate wrote on this kind of device; without it linear, mlp, "
     "attention with --overlap and --link, and auto, calibrate first: about 30 s"},
    {"explain", 0, BENCH_OPTION_FLAG, AT(explain), OVERLAPPED, 0, 0, NULL, NULL,
     "with --overlap auto: of each combination the candidates, their predicted times and why one was taken; on "
     "standard error if the table is not printed"},
    {"explain", 0, BENCH_OPTION_FLAG, AT(explain), BENCH_AUTO, 0, 0, NULL, NULL,
     "every fixed choice's time, on standard error"},
    {"only", 0, BENCH_OPTION_TEXT, AT(only), BENCH_AUTO, 0, 0, NULL, "TEXT",
     "those of its layers whose name has the text, like mlp or \"row 640\""},
    {"trace", 0, BENCH_OPTION_TEXT, AT(trace), OVERLAPPED, 0, 0, NULL, "FILE",
     "with --overlap: when each op of one call ran on each rank, for Chrome or Perfetto; the last row's; - : to "
     "standard output instead of the table"},

    {"algorithm", 0, BENCH_OPTION_CHOICES, AT(overlaps), BENCH_PLAN, 0, 0, bench_overlap_names, "NAME,...",
     "none bulk ring pipeline pull direct, auto (needs --rows --cols --inner); default: pull"},
    {"pattern", 0, BENCH_OPTION_CHOICES, AT(patterns), BENCH_PLAN, 0, 0, bench_pattern_names, "NAME,...",
     "what is overlapped: gather-gemm gemm-scatter gemm-reduce backward chain ...; default: gather-gemm"},
    {"chunks", 0, BENCH_OPTION_INTEGERS, AT(chunk_counts), BENCH_PLAN, 0, 16, NULL, "1,4,8",
     "pieces of one owner's rows; 0: the algorithm's default; none and bulk have one, auto chooses"},
    {"one-lane", 0, BENCH_OPTION_FLAG, AT(one_lane), BENCH_PLAN, 0, 0, NULL, NULL,
     "pull as ranks do that have no core for a lane: each chunk right before what needs it, by compute; with --run, or "
     "costs of a machine, its cores say so anyway"},
    {"plan", 0, BENCH_OPTION_TEXT, AT(plan_file), BENCH_PLAN, 0, 0, NULL, "FILE",
     "a plan in its text form (- : standard input), instead of those an algorithm makes: proven, priced and drawn"},
    {"explain", 0, BENCH_OPTION_FLAG, AT(explain), BENCH_PLAN, 0, 0, NULL, NULL,
     "with --algorithm auto: all candidates and why one was taken, on standard error where the table goes elsewhere"},
    {"verify", 0, BENCH_OPTION_FLAG, AT(verify), BENCH_PLAN, 0, 0, NULL, NULL,
     "prove each plan; a plan that fails is drawn as a grid"},
    {"gemm-ms", 0, BENCH_OPTION_REAL, AT(gemm_ms), BENCH_PLAN, 1e-6, 1e9, NULL, "X",
     "milliseconds of each whole GEMM; default 10"},
    {"compute-ms", 0, BENCH_OPTION_REAL, AT(compute_ms), BENCH_PLAN, 1e-6, 1e9, NULL, "X",
     "of the activation or attention core; default 1"},
    {"bytes", 0, BENCH_OPTION_BYTES, AT(plan_bytes), BENCH_PLAN, 1, MAX_COUNT, NULL, "BYTES",
     "of each buffer, all ranks' rows; default 16000000"},
    {"link", 0, BENCH_OPTION_TEXT, AT(link), BENCH_PLAN | BENCH_CALIBRATE, 0, 0, NULL, "LAT,BW",
     "seconds and bytes/s; plan's default 5e-6,8e8, with --machine its own"},
    {"machine", 0, BENCH_OPTION_TEXT, AT(machine_file), BENCH_PLAN, 0, 0, NULL, "FILE",
     "costs from what calibrate wrote, for --rows --cols --inner"},
    {"rows", 0, BENCH_OPTION_INTEGER, AT(rows), BENCH_PLAN, 1, 1e9, NULL, "N", "tokens, of all ranks"},
    {"cols", 0, BENCH_OPTION_INTEGER, AT(cols), BENCH_PLAN, 1, 1e6, NULL, "N",
     "output features of the GEMMs on one rank"},
    {"inner", 0, BENCH_OPTION_INTEGER, AT(inner), BENCH_PLAN, 1, 1e6, NULL, "N",
     "input features of the GEMMs on one rank"},
    {"run", 0, BENCH_OPTION_FLAG, AT(run), BENCH_PLAN, 0, 0, NULL, NULL,
     "run each plan too, by the layer that has it, and compare; needs --rows --cols --inner"},
    {"print", 0, BENCH_OPTION_FLAG, AT(print_text), BENCH_PLAN, 0, 0, NULL, NULL,
     "print the plan's text form, before the table"},
    {"svg", 0, BENCH_OPTION_TEXT, AT(svg), BENCH_PLAN, 0, 0, NULL, "FILE",
     "draw lanes x time; of one plan; - : to standard output instead of the table"},
    {"trace", 0, BENCH_OPTION_TEXT, AT(trace), BENCH_PLAN, 0, 0, NULL, "FILE",
     "write a Chrome/Perfetto trace; of one plan; - : to standard output instead of the table"},
    {"out", 0, BENCH_OPTION_TEXT, AT(out), BENCH_CALIBRATE, 0, 0, NULL, "FILE",
     "the machine file; default machine.txt, of a GPU machine-cuda.txt"},

    {"samples", 0, BENCH_OPTION_INTEGER, AT(samples), TIMED & ~BENCH_MODELS, 1, 4096, NULL, "N",
     "most samples of one figure"},
    {"warmup", 'w', BENCH_OPTION_INTEGER, AT(warmup), TIMED & ~BENCH_INFO, 1, 1000, NULL, "N",
     "calls or steps before the timing"},
    {"seconds", 0, BENCH_OPTION_REAL, AT(seconds), TIMED & ~BENCH_MODELS, 0.001, 3600, NULL, "X",
     "time budget of one figure"},
    {"no-check", 0, BENCH_OPTION_FLAG, AT(no_check), TIMED & ~(BENCH_INFO | BENCH_AUTO | BENCH_ROOFLINE), 0, 0, NULL,
     NULL,
     "leave out the correctness pass"},

    {"json", 0, BENCH_OPTION_OUTPUT, AT(json), BENCH_ALL, 0, 0, NULL, "[FILE]",
     "write JSON to FILE, or to standard output instead of the table"},
    {"csv", 0, BENCH_OPTION_OUTPUT, AT(csv), BENCH_ALL, 0, 0, NULL, "[FILE]", "write CSV, in the same manner"},
    {"plot", 0, BENCH_OPTION_TEXT, AT(plot), BENCH_ALL & ~(BENCH_INFO | BENCH_CALIBRATE | BENCH_AUTO), 0, 0, NULL,
     "FILE", "draw into FILE.svg or FILE.png with gnuplot"},
    {"help", 'h', BENCH_OPTION_FLAG, AT(help), BENCH_ALL, 0, 0, NULL, NULL, "this text"},
    {NULL, 0, BENCH_OPTION_FLAG, 0, 0, 0, 0, NULL, NULL, NULL},
};
