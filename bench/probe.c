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
    *op = (bench_probed){.phase = probe->phase, .op = kind->op, .dtype = kind->dtype, .matrix = kind->matrix,
                         .samples = samples};
    memcpy(op->size, kind->size, sizeof op->size);
    return op;
}

/* One op on a GPU. */
typedef struct bench_probe_mark {
    tpi_timer *timer;
    op_kind kind;
} bench_probe_mark;

/* One op under way. */
typedef struct begun_op {
    bench_watch watch;
    bench_probe_mark *mark; /* NULL: by the clock */
} begun_op;

static void enter(bench_probe *probe, const op_kind *kind, double seconds, bool clean)
{
    if (!probe->recording)
        return;
    bench_probed *op = place_of(probe, kind);
    probe->lost += op == NULL;
    if (op == NULL)
        return;
    op->flops += kind->flops;
    op->bytes += kind->bytes;
    bench_sample_add(op->samples, seconds, clean);
}

/* The next of the marks, with a timer. They are made before anything is recorded: the first step issues what all
 * issue. */
static tp_status next_mark(bench_probe *probe, bench_probe_mark **out)
{
    if (probe->marks == probe->mark_capacity) {
        int capacity = probe->mark_capacity > 0 ? 2 * probe->mark_capacity : 256;
        bench_probe_mark *more = realloc(probe->mark, (size_t)capacity * sizeof *more);
        if (more == NULL)
            return tpi_fail(probe->ctx, TP_ERR_MEMORY, "roofline: out of memory");
        memset(more + probe->mark_capacity, 0, (size_t)(capacity - probe->mark_capacity) * sizeof *more);
        probe->mark = more;
        probe->mark_capacity = capacity;
    }
    *out = &probe->mark[probe->marks++];
    return (*out)->timer != NULL ? TP_OK : probe->real->timer_create(probe->ctx, &(*out)->timer);
}

static tp_status start(bench_probe *probe, tpi_stream *stream, begun_op *begun)
{
    *begun = (begun_op){.mark = NULL};
    if (probe->by_events) {
        TPI_TRY(next_mark(probe, &begun->mark));
        return probe->real->timer_mark(begun->mark->timer, stream, 0);
    }
    begun->watch = bench_watch_start(probe->whole_process ? BENCH_ALL_SWITCHES : BENCH_OWN_THREAD);
    return TP_OK;
}

static tp_status stop(bench_probe *probe, tpi_stream *stream, const begun_op *begun, op_kind kind)
{
    double flops = probe->ctx->issued.flops - probe->flops, bytes = probe->ctx->issued.bytes - probe->bytes;
    probe->flops += flops;
    probe->bytes += bytes;
    if (kind.bytes <= 0) {
        kind.flops = flops;
        kind.bytes = bytes;
    }
    if (begun->mark != NULL) {
        begun->mark->kind = kind;
        return probe->real->timer_mark(begun->mark->timer, stream, 1);
    }
    bool clean;
    double seconds = bench_watch_stop(&begun->watch, &clean), cpu = bench_thread_seconds() - begun->watch.cpu;
    /* An op waits for nobody but its own workers: where it has none, what the thread ran is all that it took. */
    enter(probe, &kind, probe->whole_process ? seconds : cpu, clean);
    return TP_OK;
}

tp_status bench_probe_collect(bench_probe *probe)
{
    int marks = probe->marks;
    probe->marks = 0;
    for (int i = 0; i < marks; i++) {
        double seconds;
        TPI_TRY(probe->real->timer_read(probe->mark[i].timer, &seconds));
        enter(probe, &probe->mark[i].kind, seconds, true);
    }
    return TP_OK;
}

/* ---- what each op is --------------------------------------------------------------------------------------------- */

static op_kind kind_gemm(const tpi_gemm_args *args)
{
    const char *op = args->accumulate || args->a.inner_stride != 1 ? "gemm TN"
                     : args->b.inner_stride == 1                   ? "gemm NT"
                                                                   : "gemm NN";
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
    return (op_kind){
        args->dy != NULL ? "activation grad" : "activation", args->dtype, {args->rows, args->cols, 0}, false, 0, 0};
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
    return (op_kind){"attention grad", args->forward.dtype,
                     {args->forward.rows, args->forward.heads, args->forward.head_dim}, true, 0, 0};
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
        return (op_kind){"optimizer", args->value_dtype, {args->elements, 0, 0},
                         false,       15 * elements,     elements * (4 + moments + weights)};
    double copies = BENCH_WEIGHT_COPIES * (double)tp_dtype_size(args->value_dtype);
    return (op_kind){BENCH_OPTIMIZER_PACKING, args->value_dtype, {args->copies->rows, args->copies->cols, 0}, false,
                     15 * elements,
                     elements * (4 + moments + weights + copies)};
}

static op_kind kind_random_fill(const tpi_random_fill_args *args)
{
    return (op_kind){"random fill", args->dtype, {args->rows, args->cols, 0}, false, 0, 0};
}

/* ---- the slots --------------------------------------------------------------------------------------------------- */

#define OPS(OP)                                 \
    OP(gemm, tpi_gemm_args)                     \
    OP(reduce, tpi_reduce_args)                 \
    OP(map, tpi_map_args)                       \
    OP(activation, tpi_activation_args)         \
    OP(rope, tpi_rope_args)                     \
    OP(norm, tpi_norm_args)                     \
    OP(norm_grad, tpi_norm_grad_args)           \
    OP(attention, tpi_attention_args)           \
    OP(attention_grad, tpi_attention_grad_args) \
    OP(embedding, tpi_embedding_args)           \
    OP(embedding_grad, tpi_embedding_grad_args) \
    OP(xent, tpi_xent_args)                     \
    OP(square_sum, tpi_square_sum_args)         \
    OP(optimizer, tpi_optimizer_args)           \
    OP(random_fill, tpi_random_fill_args)

#define PROBED(slot, args_type)                                               \
    static tp_status probed_##slot(tpi_stream *stream, const args_type *args) \
    {                                                                         \
        bench_probe *probe = probe_of(stream->ctx);                           \
        const op_kind kind = kind_##slot(args);                               \
        begun_op begun;                                                       \
        TPI_TRY(start(probe, stream, &begun));                                \
        tp_status status = probe->real->slot(stream, args);                   \
        tp_status stopped = stop(probe, stream, &begun, kind);                \
        return status != TP_OK ? status : stopped;                            \
    }
OPS(PROBED)

static void add_kind(op_kind *sum, int64_t elements, op_kind one)
{
    sum->size[0] += elements;
    sum->flops += one.flops;
    sum->bytes += one.bytes;
}

/* Not counted by the library: each element is read, and written into a copy as large as the packed one is. */
static tp_status probed_pack(tpi_stream *stream, const tpi_operand *b, int64_t cols, int64_t inner,
                             const tpi_inner *order, const tpi_packed *out)
{
    bench_probe *probe = probe_of(stream->ctx);
    const op_kind kind = {"pack", b->dtype, {cols, inner, 0}, false, 0, 0};
    begun_op begun;
    TPI_TRY(start(probe, stream, &begun));
    tp_status status = probe->real->gemm_pack(stream, b, cols, inner, order, out);
    probe->bytes -= (double)cols * (double)inner * (double)tp_dtype_size(b->dtype) + (double)out->bytes;
    tp_status stopped = stop(probe, stream, &begun, kind);
    probe->bytes = probe->ctx->issued.bytes;
    return status != TP_OK ? status : stopped;
}

/* Lists of parameters in few launches: one op over all of their elements. */
static tp_status probed_square_sum_list(tpi_stream *stream, const tpi_square_sum_args *args, int count)
{
    bench_probe *probe = probe_of(stream->ctx);
    op_kind kind = {"square sum", TP_DTYPE_F32, {0, 0, 0}, false, 0, 0};
    for (int i = 0; i < count; i++)
        add_kind(&kind, args[i].rows * args[i].cols, kind_square_sum(&args[i]));
    begun_op begun;
    TPI_TRY(start(probe, stream, &begun));
    tp_status status = probe->real->square_sum_list(stream, args, count);
    tp_status stopped = stop(probe, stream, &begun, kind);
    return status != TP_OK ? status : stopped;
}

static tp_status probed_optimizer_list(tpi_stream *stream, const tpi_optimizer_args *args, int count)
{
    bench_probe *probe = probe_of(stream->ctx);
    op_kind kind = {"optimizer", args[0].value_dtype, {0, 0, 0}, false, 0, 0};
    for (int i = 0; i < count; i++)
        add_kind(&kind, args[i].elements, kind_optimizer(&args[i]));
    begun_op begun;
    TPI_TRY(start(probe, stream, &begun));
    tp_status status = probe->real->optimizer_list(stream, args, count);
    tp_status stopped = stop(probe, stream, &begun, kind);
    return status != TP_OK ? status : stopped;
}

void bench_probe_begin(bench_probe *probe, tp_ctx *ctx)
{
    *probe = (bench_probe){.table = *ctx->backend, .real = ctx->backend, .ctx = ctx, .flops = ctx->issued.flops,
                           .bytes = ctx->issued.bytes};
    probe->whole_process = tp_ctx_threads(ctx) > 1;
#define PUT(slot, args_type) probe->table.slot = probed_##slot;
    OPS(PUT)
#undef PUT
    probe->table.gemm_pack = probed_pack;
    if (ctx->backend->square_sum_list != NULL)
        probe->table.square_sum_list = probed_square_sum_list;
    if (ctx->backend->optimizer_list != NULL)
        probe->table.optimizer_list = probed_optimizer_list;
    probe->by_events = ctx->backend->behind && !ctx->backend->host_memory;
    ctx->backend = &probe->table;
}

void bench_probe_end(bench_probe *probe)
{
    probe->ctx->backend = probe->real;
    for (int i = 0; i < probe->mark_capacity; i++)
        if (probe->mark[i].timer != NULL)
            probe->real->timer_destroy(probe->mark[i].timer);
    free(probe->mark);
    probe->mark = NULL;
    probe->marks = probe->mark_capacity = 0;
}

void bench_probe_free(bench_probe *probe)
{
    for (int i = 0; i < probe->count; i++)
        free(probe->op[i].samples);
    probe->count = 0;
}
