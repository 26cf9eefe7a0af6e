#include "probe.h"

#include "core/context.h"
#include "core/stream.h"

#include <stdlib.h>
#include <string.h>

/* What an op is, for telling it from others. */
typedef struct op_kind {
    const char *op;
    tp_dtype dtype;
    int64_t size[3];
    bool matrix;
    double flops, bytes; /* of one of a list, which the library counts all at once; 0: as counted */
} op_kind;

static bench_probe *probe_of(const tp_ctx *ctx)
{
    return (bench_probe *)(uintptr_t)ctx->backend;
}

static bench_probed *place_of(bench_probe *probe, const op_kind *kind)
{
    for (int i = 0; i < probe->count; i++) {
        bench_probed *op = &probe->op[i];
        if (op->phase == probe->phase && strcmp(op->op, kind->op) == 0 && op->dtype == kind->dtype &&
            memcmp(op->size, kind->size, sizeof op->size) == 0)
            return op;
    }
    bench_samples *samples = probe->count < BENCH_PROBED ? calloc(1, sizeof *samples) : NULL;
    if (samples == NULL)
        return NULL;
    bench_probed *op = &probe->op[probe->count++];
    *op = (bench_probed){.phase = probe->phase, .op = kind->op, .dtype = kind->dtype, .matrix = kind->matrix, .samples = samples};
    memcpy(op->size, kind->size, sizeof op->size);
    return op;
}

static void stop(bench_probe *probe, const bench_watch *watch, const op_kind *kind)
{
    bool clean;
    double seconds = bench_watch_stop(watch, &clean);
    double cpu = bench_thread_seconds() - watch->cpu;
    double flops = probe->ctx->issued.flops - probe->flops, bytes = probe->ctx->issued.bytes - probe->bytes;
    probe->flops += flops;
    probe->bytes += bytes;
    if (!probe->recording)
        return;
    bench_probed *op = place_of(probe, kind);
    probe->lost += op == NULL;
    if (op == NULL)
        return;
    op->flops = kind->bytes > 0 ? kind->flops : flops;
    op->bytes = kind->bytes > 0 ? kind->bytes : bytes;
    /* An op waits for nobody but its own workers: where it has none, the thread's own time is as good, also when it was switched out. */
    bench_sample_add(op->samples, clean || probe->whole_process ? seconds : cpu, clean);
}

/* ---- what each op is ------------------------------------------------------------------------------------------------- */

static op_kind kind_gemm(const tpi_gemm_args *args)
{
    const char *op = args->accumulate || args->a.inner_stride != 1 ? "gemm TN" : args->b.inner_stride == 1 ? "gemm NT" : "gemm NN";
    return (op_kind){op, args->a.dtype, {args->rows, args->cols, args->inner}, true, 0, 0};
}

static op_kind kind_reduce(const tpi_reduce_args *args)
{
    return (op_kind){"reduce", args->in_dtype, {args->rows, args->cols, args->inputs}, false, 0, 0};
}

static op_kind kind_map(const tpi_map_args *args)
{
    return (op_kind){args->in == NULL ? "clear" : "map", args->out_dtype, {args->rows, args->cols, 0}, false, 0, 0};
}

static op_kind kind_activation(const tpi_activation_args *args)
{
    return (op_kind){args->dy != NULL ? "activation grad" : "activation", args->dtype, {args->rows, args->cols, 0}, false, 0, 0};
}

static op_kind kind_rope(const tpi_rope_args *args)
{
    return (op_kind){"rope", args->dtype, {args->rows, args->heads, args->head_dim}, false, 0, 0};
}

static op_kind kind_norm(const tpi_norm_args *args)
{
    return (op_kind){"norm", args->dtype, {args->rows, args->cols, 0}, false, 0, 0};
}

static op_kind kind_norm_grad(const tpi_norm_grad_args *args)
{
    return (op_kind){"norm grad", args->dtype, {args->rows, args->cols, 0}, false, 0, 0};
}

static op_kind kind_attention(const tpi_attention_args *args)
{
    return (op_kind){"attention", args->dtype, {args->rows, args->heads, args->head_dim}, true, 0, 0};
}

static op_kind kind_attention_grad(const tpi_attention_grad_args *args)
{
    return (op_kind){"attention grad", args->forward.dtype, {args->forward.rows, args->forward.heads, args->forward.head_dim}, true, 0, 0};
}

static op_kind kind_embedding(const tpi_embedding_args *args)
{
    return (op_kind){"embedding", args->table_dtype, {args->rows, args->cols, 0}, false, 0, 0};
}

static op_kind kind_embedding_grad(const tpi_embedding_grad_args *args)
{
    return (op_kind){"embedding grad", args->dy_dtype, {args->rows, args->cols, 0}, false, 0, 0};
}

static op_kind kind_xent(const tpi_xent_args *args)
{
    static const char *const names[] = {"", "loss: maxima", "loss: sums", "loss: losses", "loss: gradient"};
    return (op_kind){names[args->phase], args->dtype, {args->rows, args->cols, 0}, false, 0, 0};
}

static op_kind kind_square_sum(const tpi_square_sum_args *args)
{
    double elements = (double)args->rows * (double)args->cols;
    return (op_kind){"square sum", TP_DTYPE_F32, {args->rows, args->cols, 0}, false, 2 * elements, 4 * elements};
}

static op_kind kind_optimizer(const tpi_optimizer_args *args)
{
    double elements = (double)args->elements, moments = (args->m != NULL ? 8 : 0) + (args->v != NULL ? 8 : 0);
    double weights = args->master != NULL ? 8 + (double)tp_dtype_size(args->value_dtype) : 8;
    if (args->copies == NULL)
        return (op_kind){"optimizer", args->value_dtype, {args->elements, 0, 0}, false, 15 * elements, elements * (4 + moments + weights)};
    double copies = BENCH_WEIGHT_COPIES * (double)tp_dtype_size(args->value_dtype);
    return (op_kind){BENCH_OPTIMIZER_PACKING, args->value_dtype, {args->copies->rows, args->copies->cols, 0}, false, 15 * elements,
                     elements * (4 + moments + weights + copies)};
}

static op_kind kind_random_fill(const tpi_random_fill_args *args)
{
    return (op_kind){"random fill", args->dtype, {args->rows, args->cols, 0}, false, 0, 0};
}

/* ---- the slots ------------------------------------------------------------------------------------------------------- */

#define OPS(OP)                                                                                                                 \
    OP(gemm, tpi_gemm_args)                                                                                                     \
    OP(reduce, tpi_reduce_args)                                                                                                 \
    OP(map, tpi_map_args)                                                                                                       \
    OP(activation, tpi_activation_args)                                                                                         \
    OP(rope, tpi_rope_args)                                                                                                     \
    OP(norm, tpi_norm_args)                                                                                                     \
    OP(norm_grad, tpi_norm_grad_args)                                                                                           \
    OP(attention, tpi_attention_args)                                                                                           \
    OP(attention_grad, tpi_attention_grad_args)                                                                                 \
    OP(embedding, tpi_embedding_args)                                                                                           \
    OP(embedding_grad, tpi_embedding_grad_args)                                                                                 \
    OP(xent, tpi_xent_args)                                                                                                     \
    OP(square_sum, tpi_square_sum_args)                                                                                         \
    OP(optimizer, tpi_optimizer_args)                                                                                           \
    OP(random_fill, tpi_random_fill_args)

#define PROBED(slot, args_type)                                                                                                 \
    static tp_status probed_##slot(tpi_stream *stream, const args_type *args)                                                   \
    {                                                                                                                           \
        bench_probe *probe = probe_of(stream->ctx);                                                                             \
        const op_kind kind = kind_##slot(args);                                                                                 \
        const bench_watch watch = bench_watch_start(probe->whole_process);                                                      \
        tp_status status = probe->real->slot(stream, args);                                                                     \
        stop(probe, &watch, &kind);                                                                                             \
        return status;                                                                                                          \
    }
OPS(PROBED)

/* Not counted by the library: each element is read, and written into a copy as large as the packed one is. */
static tp_status probed_pack(tpi_stream *stream, const tpi_operand *b, int64_t cols, int64_t inner, const tpi_inner *order,
                             const tpi_packed *out)
{
    bench_probe *probe = probe_of(stream->ctx);
    const op_kind kind = {"pack", b->dtype, {cols, inner, 0}, false, 0, 0};
    const bench_watch watch = bench_watch_start(probe->whole_process);
    tp_status status = probe->real->gemm_pack(stream, b, cols, inner, order, out);
    probe->bytes -= (double)cols * (double)inner * (double)tp_dtype_size(b->dtype) + (double)out->bytes;
    stop(probe, &watch, &kind);
    probe->bytes = probe->ctx->issued.bytes;
    return status;
}

void bench_probe_begin(bench_probe *probe, tp_ctx *ctx)
{
    *probe = (bench_probe){.table = *ctx->backend, .real = ctx->backend, .ctx = ctx, .flops = ctx->issued.flops, .bytes = ctx->issued.bytes};
    probe->whole_process = tp_ctx_threads(ctx) > 1;
#define PUT(slot, args_type) probe->table.slot = probed_##slot;
    OPS(PUT)
#undef PUT
    probe->table.gemm_pack = probed_pack;
    ctx->backend = &probe->table;
}

void bench_probe_end(bench_probe *probe)
{
    probe->ctx->backend = probe->real;
}

void bench_probe_free(bench_probe *probe)
{
    for (int i = 0; i < probe->count; i++)
        free(probe->op[i].samples);
    probe->count = 0;
}
