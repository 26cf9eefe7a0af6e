/* Parameter values and gradients as whole tensors: loading, gathering, initialising, finishing gradients. */
#include <stdlib.h>
#include <string.h>

#include "comm/table.h"
#include "core/inner.h"
#include "train/param.h"

/* Calls fn for each run of this rank's shard that is contiguous in global indices along shard_dim: local range and its
 * global start. */
typedef struct tpi_run {
    int64_t local, global, length;
} tpi_run;

static int shard_runs(const tp_param *param, int ranks, int rank, bool owned_only, tpi_run run[TP_PARAM_PARTS])
{
    if (param->shard_dim < 0) {
        run[0] = (tpi_run){0, 0, param->shape[0]};
        return 1;
    }
    int64_t local = 0, global = 0;
    for (int p = 0; p < param->parts; p++) {
        tp_range held = tp_shard_part_held(&param->part[p], ranks, rank);
        tp_range range = owned_only ? tp_shard_part_owned(&param->part[p], ranks, rank) : held;
        run[p] = (tpi_run){local + range.begin - held.begin, global + range.begin, range.end - range.begin};
        local += held.end - held.begin;
        global += param->part[p].units * param->part[p].unit_size;
    }
    return param->parts;
}

static float read_value(const void *data, tp_dtype dtype, int64_t index)
{
    switch (dtype) {
    case TP_DTYPE_BF16: return tp_f32_from_bf16(((const uint16_t *)data)[index]);
    case TP_DTYPE_F16: return tp_f32_from_f16(((const uint16_t *)data)[index]);
    default: return ((const float *)data)[index];
    }
}

static void write_value(void *data, tp_dtype dtype, int64_t index, float value)
{
    switch (dtype) {
    case TP_DTYPE_BF16: ((uint16_t *)data)[index] = tp_bf16_from_f32(value); break;
    case TP_DTYPE_F16: ((uint16_t *)data)[index] = tp_f16_from_f32(value); break;
    default: ((float *)data)[index] = value; break;
    }
}

/* How a run maps onto [rows, cols] of the shard and of the global tensor. */
typedef struct tpi_window {
    int64_t rows, cols, local_row, local_col, global_row, global_col, local_cols, global_cols;
} tpi_window;

static tpi_window window_of(const tp_param *param, const tpi_run *run)
{
    int dim = param->shard_dim < 0 ? 0 : param->shard_dim;
    tpi_window w = {.rows = param->value.shape[0],
                    .cols = param->dims == 2 ? param->value.shape[1] : 1,
                    .local_cols = param->dims == 2 ? param->value.shape[1] : 1,
                    .global_cols = param->dims == 2 ? param->shape[1] : 1};
    if (dim == 0) {
        w.rows = run->length;
        w.local_row = run->local;
        w.global_row = run->global;
    } else {
        w.cols = run->length;
        w.local_col = run->local;
        w.global_col = run->global;
    }
    return w;
}

/* A tensor of this rank as the host can address it: itself, or a copy of a device's. */
typedef struct host_view {
    void *data;
    size_t bytes;
    bool copied;
} host_view;

static tp_status view_begin(tp_ctx *ctx, const tp_tensor *tensor, host_view *out)
{
    *out = (host_view){.data = tensor->data, .bytes = tp_tensor_bytes(*tensor), .copied = !ctx->backend->host_memory};
    if (!out->copied)
        return TP_OK;
    out->data = tpi_host_allocate(ctx, out->bytes);
    return out->data ? TP_OK
                     : tpi_refuse(ctx, TP_ERR_MEMORY, "parameter: no memory for %zu bytes on the host", out->bytes);
}

static void view_end(tp_ctx *ctx, host_view *view)
{
    if (view->copied)
        tpi_host_release(ctx, view->data, view->bytes);
}

/* Where the global tensor's elements are. */
typedef struct global_view {
    const void *data;
    tp_dtype dtype;
    int64_t row_stride, col_stride;
} global_view;

static void fill_shard(tp_ctx *ctx, const tp_param *param, const global_view *from, void *shard)
{
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    tp_dtype dtype = param->value.dtype;
    size_t size = tp_dtype_size(dtype);
    tpi_run run[TP_PARAM_PARTS];
    int runs = shard_runs(param, tp_comm_size(group), tp_comm_rank(group), false, run);
    for (int i = 0; i < runs; i++) {
        tpi_window w = window_of(param, &run[i]);
        for (int64_t r = 0; r < w.rows; r++)
            for (int64_t c = 0; c < w.cols; c++) {
                int64_t at = (w.global_row + r) * from->row_stride + (w.global_col + c) * from->col_stride;
                int64_t to = (w.local_row + r) * w.local_cols + w.local_col + c;
                if (from->dtype == dtype) /* the same bits, NaN payloads too */
                    memcpy((char *)shard + (size_t)to * size, (const char *)from->data + (size_t)at * size, size);
                else
                    write_value(shard, dtype, to, read_value(from->data, from->dtype, at));
            }
    }
}

static tp_status load(tp_ctx *ctx, tp_param *param, const global_view *from)
{
    host_view view;
    TPI_TRY(view_begin(ctx, &param->value, &view));
    fill_shard(ctx, param, from, view.data);
    tp_status status = view.copied ? tp_ctx_upload(ctx, param->value.data, view.data, view.bytes) : TP_OK;
    view_end(ctx, &view);
    return status;
}

tp_status tp_param_load(tp_ctx *ctx, tp_param *param, const void *global, tp_dtype dtype, const int64_t stride[2])
{
    TPI_TRY(tpi_param_check(ctx, "tp_param_load", param));
    TPI_TRY(tpi_given(ctx, "tp_param_load: global", global));
    if (dtype != TP_DTYPE_F32 && dtype != TP_DTYPE_BF16 && dtype != TP_DTYPE_F16)
        return tpi_refuse(ctx, TP_ERR_DTYPE, "tp_param_load: '%s' from dtype %s: f32, bf16 or f16 expected",
                          param->name, tp_dtype_name(dtype));
    const global_view from = {.data = global,
                              .dtype = dtype,
                              .row_stride = stride ? stride[0] : (param->dims == 2 ? param->shape[1] : 1),
                              .col_stride = stride && param->dims == 2 ? stride[1] : 1};
    TPI_TRY(tp_ctx_synchronize(ctx));
    TPI_TRY(load(ctx, param, &from));
    return tp_param_touch(ctx, param);
}

/* What this rank owns of the whole tensor; the rest stays as it is. */
static void fill_global(tp_ctx *ctx, const tp_param *param, const tp_tensor *source, const void *shard, float *global)
{
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    tpi_run run[TP_PARAM_PARTS];
    int runs = shard_runs(param, tp_comm_size(group), tp_comm_rank(group), true, run);
    bool mine = param->shard_dim >= 0 || tp_comm_rank(group) == 0;
    for (int i = 0; mine && i < runs; i++) {
        tpi_window w = window_of(param, &run[i]);
        for (int64_t r = 0; r < w.rows; r++)
            for (int64_t c = 0; c < w.cols; c++)
                global[(w.global_row + r) * w.global_cols + w.global_col + c] =
                    read_value(shard, source->dtype, (w.local_row + r) * w.local_cols + w.local_col + c);
    }
}

/* Every element is one rank's, and +0 on all others: their bits are or-ed. A sum would turn -0 into +0 and NaN payloads
 * into others. */
static tp_status merge(tp_ctx *ctx, tp_comm *group, float *global, int64_t elements)
{
    enum { CHUNK = 4096 };
    int ranks = tp_comm_size(group);
    size_t bytes = (size_t)ranks * CHUNK * sizeof(uint32_t);
    uint32_t *all = tpi_host_allocate(ctx, bytes);
    if (all == NULL)
        return tpi_fail(ctx, TP_ERR_MEMORY, "tp_param_gather: no memory for %zu bytes on the host", bytes);
    tp_status status = TP_OK;
    for (int64_t begin = 0; begin < elements && status == TP_OK; begin += CHUNK) {
        size_t count = (size_t)(elements - begin < CHUNK ? elements - begin : CHUNK);
        status = group->table->exchange(ctx, group, global + begin, all, count * sizeof *all);
        for (size_t i = 0; i < count && status == TP_OK; i++) {
            uint32_t bits = 0;
            for (size_t rank = 0; rank < (size_t)ranks; rank++)
                bits |= all[rank * count + i];
            memcpy(global + begin + i, &bits, sizeof bits);
        }
    }
    tpi_host_release(ctx, all, bytes);
    return status;
}

static tp_status gather(tp_ctx *ctx, const tp_param *param, const tp_tensor *source, float *global)
{
    host_view view;
    int64_t elements = tp_param_elements(param);
    TPI_TRY(view_begin(ctx, source, &view));
    tp_status status = view.copied ? tp_ctx_download(ctx, view.data, source->data, view.bytes) : TP_OK;
    if (status == TP_OK) {
        memset(global, 0, (size_t)elements * sizeof(float));
        fill_global(ctx, param, source, view.data, global);
    }
    view_end(ctx, &view);
    return status == TP_OK ? merge(ctx, tp_ctx_group(ctx, TP_AXIS_TP), global, elements) : status;
}

tp_status tp_param_gather(tp_ctx *ctx, const tp_param *param, int which, float *global)
{
    TPI_TRY(tpi_param_check(ctx, "tp_param_gather", param));
    if (which != 0 && which != 1)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_param_gather: which is %d, must be 0 (value) or 1 (gradient)",
                          which);
    const tp_tensor *source = which == 0 ? &param->value : &param->grad;
    if (source->data == NULL || global == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_param_gather: '%s' has no %s", param->name,
                          global == NULL ? "destination" : "gradient (frozen)");
    tp_param *settled = (tp_param *)(uintptr_t)param;
    if (which == 1)
        TPI_TRY(tpi_params_settle(ctx, &settled, 1));
    TPI_TRY(tp_ctx_synchronize(ctx));
    return gather(ctx, param, source, global);
}

static tp_status init_run(tp_ctx *ctx, tp_param *param, const tpi_run *run)
{
    tpi_window w = window_of(param, run);
    size_t size = tp_dtype_size(param->value.dtype);
    char *first = (char *)param->value.data + (size_t)(w.local_row * w.local_cols + w.local_col) * size;
    return tpi_random_fill(ctx->compute,
                           &(tpi_random_fill_args){.rows = w.rows,
                                                   .cols = w.cols,
                                                   .out = first,
                                                   .dtype = param->value.dtype,
                                                   .stride = w.local_cols,
                                                   .std = param->init_std,
                                                   .key = {tp_ctx_seed(ctx), tp_random_stream_name(param->name)},
                                                   .first_row = w.global_row,
                                                   .first_col = w.global_col,
                                                   .total_cols = w.global_cols});
}

static tp_status init_param(tp_ctx *ctx, tp_param *param)
{
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    if (param->init == TP_INIT_NORMAL) {
        tpi_run run[TP_PARAM_PARTS];
        int runs = shard_runs(param, tp_comm_size(group), tp_comm_rank(group), false, run);
        for (int i = 0; i < runs; i++)
            TPI_TRY(init_run(ctx, param, &run[i]));
        return tp_param_touch(ctx, param);
    }
    static const float values[] = {0.0f, 1.0f};
    TPI_TRY(tp_ctx_synchronize(ctx));
    TPI_TRY(load(ctx, param, &(global_view){.data = &values[param->init == TP_INIT_ONE], .dtype = TP_DTYPE_F32}));
    return tp_param_touch(ctx, param);
}

tp_status tp_params_init(tp_ctx *ctx, tp_param *const *params, int count)
{
    TPI_TRY(tpi_params_check(ctx, "tp_params_init", params, count));
    for (int i = 0; i < count; i++)
        TPI_TRY(init_param(ctx, params[i]));
    return TP_OK;
}

/* Tree over this rank's virtual ranks of one PARTIAL parameter, into its place in the buffer that all of them are
 * all-reduced in. */
static tp_status reduce_virtual(tp_ctx *ctx, const tp_param *param, float *node)
{
    int64_t blocks = param->grad_partial.shape[0], elements = param->grad_partial.shape[1];
    tpi_reduce_args args = {.inputs = (int)blocks,
                            .in_dtype = TP_DTYPE_F32,
                            .outputs = 1,
                            .single = node,
                            .out_dtype = TP_DTYPE_F32,
                            .rows = 1,
                            .cols = elements};
    for (int64_t v = 0; v < blocks; v++)
        args.leaf[v] = (const float *)param->grad_partial.data + v * elements;
    return tpi_reduce(ctx->compute, &args);
}

static tp_status finish_partial(tp_ctx *ctx, tp_param *const *params, int count, float *buffer, int64_t total)
{
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        if (params[i]->grad_partial.data == NULL)
            continue;
        TPI_TRY(reduce_virtual(ctx, params[i], buffer + at));
        at += params[i]->grad_partial.shape[1];
    }
    tp_tensor all = tp_tensor_1d(buffer, TP_DTYPE_F32, total);
    TPI_TRY(tp_all_reduce(ctx, tp_ctx_group(ctx, TP_AXIS_TP), all, all, NULL));
    at = 0;
    for (int i = 0; i < count; i++) {
        if (params[i]->grad_partial.data == NULL)
            continue;
        TPI_TRY(tpi_param_move(ctx, buffer + at, params[i]->grad.data, params[i]->grad_partial.shape[1], false));
        at += params[i]->grad_partial.shape[1];
    }
    return TP_OK;
}

tp_status tp_params_finish(tp_ctx *ctx, tp_param *const *params, int count)
{
    TPI_TRY(tpi_params_check(ctx, "tp_params_finish", params, count));
    TPI_TRY(tpi_params_settle(ctx, params, count));
    int64_t total = 0;
    for (int i = 0; i < count; i++)
        total += params[i]->grad_partial.data != NULL ? params[i]->grad_partial.shape[1] : 0;
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = TP_OK;
    if (total > 0) {
        void *buffer;
        status = tpi_scratch(ctx, (size_t)total * sizeof(float), &buffer);
        if (status == TP_OK)
            status = finish_partial(ctx, params, count, buffer, total);
    }
    tpi_arena_release(&ctx->scratch, mark);
    for (int i = 0; i < count && status == TP_OK; i++)
        status = tpi_param_add_tied(ctx, params[i]);
    return status;
}
