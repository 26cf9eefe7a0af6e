/* The commands of tp_bench: one table; a new command is one entry in it and one file. */
#ifndef BENCH_COMMAND_H
#define BENCH_COMMAND_H

#include "machine.h"
#include "measure.h"
#include "options.h"
#include "table.h"

/* What a command gets. It returns a BENCH_ status and, when that is not BENCH_OK, a message. Rows it has filled are
 * printed all the same. */
typedef struct bench_call {
    bench_options options;
    bench_machine machine;
    tp_machine costs; /* what --machine says, for --overlap auto; bench_load_costs reads it */
    tp_device_info gpu; /* with --device cuda; bench_take_device fills it in */
    bench_table table;
    char message[BENCH_MESSAGE];
} bench_call;

typedef struct bench_command {
    const char *name;
    unsigned bit;
    int (*run)(bench_call *call);
    const char *summary;
    const char *text; /* what it does, what its columns mean */
    const char *examples;
} bench_command;

/* All commands, up to one without a name. */
extern const bench_command bench_command_table[];

int bench_command_info(bench_call *call);
int bench_command_gemm(bench_call *call);
int bench_command_collective(bench_call *call);
int bench_command_layer(bench_call *call);
int bench_command_model(bench_call *call);
int bench_command_sweep(bench_call *call);
int bench_command_roofline(bench_call *call);
int bench_command_plan(bench_call *call);
int bench_command_calibrate(bench_call *call);
int bench_command_auto(bench_call *call);

/* A refused option (nothing was done yet), and a failure on the way: set the message, return the status. */
int bench_refuse(bench_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
int bench_fail(bench_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Reads --device, --plugin, --device-index and --sums. BENCH_FAILED, with one line saying why, if that GPU can't be
 * used. */
int bench_take_device(bench_call *call);
static inline bool bench_on_gpu(const bench_call *call)
{
    return call->options.device == TP_DEVICE_CUDA;
}

/* A context of one rank as the options want it. */
tp_ctx_desc bench_ctx_desc(const bench_call *call, int threads);

/* For the columns "isa" and "on": "avx512", "sm_80"; "threads, simulated GPU". */
void bench_isa_cell(bench_call *call);
void bench_on_cell(bench_call *call, const char *transport);

/* Whether so many threads of so many ranks have cores of their own; on GPUs: whether each rank has one. */
bool bench_fits(const bench_call *call, int ranks, int threads);

/* On a simulated GPU: columns with these bits stay empty, and a note says why. */
void bench_hide_times(bench_call *call, uint64_t columns);
#define BENCH_BITS(from, to) (((UINT64_C(2) << (to)) - 1) & ~((UINT64_C(1) << (from)) - 1)) /* columns from .. to */

/* Begins the table: its columns, and its line about the machine. */
void bench_begin(bench_call *call, const bench_column *columns, int count);

/* Reads the costs that --machine names, if it is given. */
int bench_load_costs(bench_call *call);

/* By which a file of calibrate knows what it was measured on: this machine, or the GPUs and the sums that the options
 * say. */
void bench_costs_name(const bench_call *call, char *text, size_t bytes);

/* A failed check: counted, so that the exit status tells, and noted. */
void bench_check_failed(bench_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Notes how many samples were dropped because a thread was switched out during them. */
void bench_note_samples(bench_call *call, int64_t kept, int64_t total);

/* Notes that of all rows that have numbers in these columns, and how many rows have no clean sample at all. */
void bench_note_kept(bench_call *call, int kept_column, int total_column);

#endif
