/* tp_all_reduce_norm where it is two ops: the bits of tp_all_reduce and of the norm, one after the other, and its
 * refusals. */
#include "core/context.h"
#include "core/ops.h"
#include "ranks.h"

typedef struct norm_scene {
    tp_ctx *ctx;
    tp_comm *comm;
    tp_dtype dtype;
    int64_t rows, cols;
    bool rms;
} norm_scene;

static tp_tensor array(const norm_scene *s, int64_t rows, uint64_t seed)
{
    void *data = tpt_new_normal(s->dtype, rows * s->cols, seed, 1.0);
    return tp_tensor_2d(data, s->dtype, rows, s->cols);
}

static tp_status compare(const norm_scene *s)
{
    uint64_t rank = (uint64_t)tp_comm_rank(s->comm);
    size_t bytes = (size_t)(s->rows * s->cols) * tp_dtype_size(s->dtype);
    tp_tensor in = array(s, s->rows, 1 + rank), residual = array(s, s->rows, 50), gain = array(s, 1, 51),
              bias = array(s, 1, 52);
    tp_tensor sum[2] = {array(s, s->rows, 53), array(s, s->rows, 53)},
              y[2] = {array(s, s->rows, 54), array(s, s->rows, 54)};
    float *stats[2] = {tpt_array(TP_DTYPE_F32, 2 * s->rows + 1), tpt_array(TP_DTYPE_F32, 2 * s->rows + 1)};
    const tp_reduce_desc add = {.residual = residual};
    const tpi_norm_args apart = {.rms = s->rms,
                                 .rows = s->rows,
                                 .cols = s->cols,
                                 .dtype = s->dtype,
                                 .x = sum[0].data,
                                 .x_stride = s->cols,
                                 .gain = gain.data,
                                 .bias = s->rms ? NULL : bias.data,
                                 .epsilon = 1e-5f,
                                 .y = y[0].data,
                                 .y_stride = s->cols,
                                 .stats = stats[0]};
    const tp_reduce_norm norm = {.rms = s->rms,
                                 .epsilon = 1e-5f,
                                 .gain = tp_tensor_1d(gain.data, s->dtype, s->cols),
                                 .bias = s->rms ? tp_tensor_none() : tp_tensor_1d(bias.data, s->dtype, s->cols),
                                 .out = y[1],
                                 .stats = tp_tensor_2d(stats[1], TP_DTYPE_F32, s->rows, 2)};
    TPI_TRY(tp_all_reduce(s->ctx, s->comm, in, sum[0], &add));
    TPI_TRY(tpi_norm(s->ctx->compute, &apart));
    TPI_TRY(tp_all_reduce_norm(s->ctx, s->comm, in, sum[1], &add, &norm));
    TPI_TRY(tp_ctx_synchronize(s->ctx));
    CHECK(memcmp(sum[0].data, sum[1].data, bytes) == 0);
    CHECK(memcmp(y[0].data, y[1].data, bytes) == 0);
    CHECK(memcmp(stats[0], stats[1], (size_t)(2 * s->rows) * sizeof(float)) == 0);
    void *const all[] = {in.data,     residual.data, gain.data, bias.data, sum[0].data,
                         sum[1].data, y[0].data,     y[1].data, stats[0],  stats[1]};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        free(all[i]);
    return TP_OK;
}

static tp_status all_shapes(tp_ctx *ctx, void *arg)
{
    static const int64_t shapes[][2] = {{0, 5}, {1, 1}, {3, 64}, {17, 37}};
    (void)arg;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (tp_dtype dtype = TP_DTYPE_F32; dtype <= TP_DTYPE_F16; dtype++)
            for (int rms = 0; rms < 2; rms++) {
                const norm_scene s = {ctx, tp_ctx_world(ctx), dtype, shapes[i][0], shapes[i][1], rms == 1};
                TPI_TRY(compare(&s));
            }
    return TP_OK;
}

Test(reduce_norm, bits_of_both_ops)
{
    for (int ranks = 1; ranks <= 4; ranks++)
        tpt_run_with((tp_run_options){.ranks = ranks}, all_shapes, NULL);
}

static tp_status refusals(tp_ctx *ctx, void *arg)
{
    float data[12] = {0}, out[12], gain[4] = {0};
    (void)arg;
    tp_comm *comm = tp_ctx_world(ctx);
    tp_tensor x = tp_tensor_2d(data, TP_DTYPE_F32, 3, 4);
    const tp_reduce_norm good = {
        .rms = true, .gain = tp_tensor_1d(gain, TP_DTYPE_F32, 4), .out = tp_tensor_2d(out, TP_DTYPE_F32, 3, 4)};
    tp_reduce_norm bad = good;
    CHECK(tp_all_reduce_norm(ctx, comm, x, x, NULL, NULL) == TP_ERR_ARGUMENT);
    CHECK(tp_all_reduce_norm(ctx, comm, x, x, &(tp_reduce_desc){.op = TP_REDUCE_MAX}, &good) == TP_ERR_ARGUMENT);
    bad.out = x;
    CHECK(tp_all_reduce_norm(ctx, comm, x, x, NULL, &bad) == TP_ERR_ARGUMENT);
    bad = good;
    bad.gain.shape[0] = 3;
    CHECK(tp_all_reduce_norm(ctx, comm, x, x, NULL, &bad) == TP_ERR_SHAPE);
    bad = good;
    bad.bias = bad.gain;
    CHECK(tp_all_reduce_norm(ctx, comm, x, x, NULL, &bad) == TP_ERR_ARGUMENT);
    bad = good;
    bad.epsilon = -1;
    CHECK(tp_all_reduce_norm(ctx, comm, x, x, NULL, &bad) == TP_ERR_ARGUMENT);
    return tp_all_reduce_norm(ctx, comm, x, x, NULL, &good);
}

Test(reduce_norm, refusals)
{
    tpt_run_with((tp_run_options){.ranks = 2}, refusals, NULL);
    tp_world *world;
    cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = 1, .peer_kernels = (tp_peer_kernels)3}, &world),
                 TP_ERR_ARGUMENT);
}
