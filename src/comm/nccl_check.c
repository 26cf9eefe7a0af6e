/* NCCL takes whatever it is given: ranks that call different things hang, or overwrite memory. A checking world
 * compares the calls first. */
#include <stdio.h>
#include <string.h>

#include "comm/nccl.h"

typedef struct call_record {
    char name[16];
    int64_t rows, cols, out_rows;
    uint64_t counts; /* a number made of them */
    int in_dtype, out_dtype, op, algorithm, root;
} call_record;

static uint64_t number_of(const int64_t *counts, int size)
{
    uint64_t number = counts ? 1469598103934665603u : 0;
    for (int rank = 0; counts && rank < size; rank++)
        number = (number ^ (uint64_t)counts[rank]) * 1099511628211u;
    return number;
}

/* all_to_all: rows are each rank's own. */
static call_record record_of(const tpi_nccl_call *call, const char *name, const tpi_collective_args *args)
{
    call_record record;
    memset(&record, 0, sizeof record);
    snprintf(record.name, sizeof record.name, "%s", name);
    bool own_rows = strcmp(name, "all_to_all") == 0;
    record.rows = own_rows ? 0 : args->rows;
    record.cols = args->cols;
    record.counts = own_rows ? 0 : number_of(args->counts, call->size);
    record.in_dtype = (int)args->in_dtype;
    record.out_dtype = (int)args->out_dtype;
    record.op = (int)args->reduce.op;
    record.algorithm = (int)args->reduce.algorithm;
    record.root = args->root;
    return record;
}

static void describe(const call_record *record, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s of [%lld, %lld] %s to %s, counts %llx, op %d, algorithm %d, root %d", record->name,
             (long long)record->rows, (long long)record->cols, tp_dtype_name((tp_dtype)record->in_dtype),
             tp_dtype_name((tp_dtype)record->out_dtype), (unsigned long long)record->counts, record->op,
             record->algorithm, record->root);
}

static tp_status compare(const tpi_nccl_call *call, const call_record *mine)
{
    call_record all[TPI_MAX_RANKS];
    tp_comm *control = call->own->control;
    TPI_TRY(control->table->exchange(call->ctx, control, mine, all, sizeof *mine));
    for (int rank = 1; rank < call->size; rank++)
        if (memcmp(&all[rank], &all[0], sizeof all[0]) != 0) {
            char first[192], other[192];
            describe(&all[0], first, sizeof first);
            describe(&all[rank], other, sizeof other);
            return tpi_fail(call->ctx, TP_ERR_MISMATCH, "rank 0 calls %s; rank %d calls %s", first, rank, other);
        }
    return TP_OK;
}

typedef struct row_counts {
    int64_t sent[TPI_MAX_RANKS], expected[TPI_MAX_RANKS];
} row_counts;

/* What ranks send each other is what they expect. All look at all, so that all fail alike. */
static tp_status compare_counts(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    tp_comm *control = call->own->control;
    row_counts mine, all[TPI_MAX_RANKS];
    memset(&mine, 0, sizeof mine);
    for (int peer = 0; peer < call->size; peer++) {
        tp_range sent = tpi_comm_range(args->counts, args->rows, call->size, peer);
        tp_range expected = tpi_comm_range(args->recv_counts, args->out_rows, call->size, peer);
        mine.sent[peer] = sent.end - sent.begin;
        mine.expected[peer] = expected.end - expected.begin;
    }
    TPI_TRY(control->table->exchange(call->ctx, control, &mine, all, sizeof mine));
    for (int from = 0; from < call->size; from++)
        for (int to = 0; to < call->size; to++)
            if (all[from].sent[to] != all[to].expected[from])
                return tpi_fail(call->ctx, TP_ERR_MISMATCH,
                                "all_to_all: rank %d sends %lld rows to rank %d, which expects %lld", from,
                                (long long)all[from].sent[to], to, (long long)all[to].expected[from]);
    return TP_OK;
}

tp_status tpi_nccl_check(const tpi_nccl_call *call, const char *name, const tpi_collective_args *args)
{
    if (!call->own->checks)
        return TP_OK;
    const call_record record = record_of(call, name, args);
    TPI_TRY(compare(call, &record));
    return strcmp(name, "all_to_all") == 0 ? compare_counts(call, args) : TP_OK;
}
