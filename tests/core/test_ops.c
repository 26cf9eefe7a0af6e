/* Issuing ops: what is refused and how, what is dispatched, and how work is counted. */
#include <math.h>

#include "op_stub.h"

static tpi_gemm_args good_gemm(void)
{
    return (tpi_gemm_args){
        .rows = 3,
        .cols = 4,
        .inner = 5,
        .a = {data, TP_DTYPE_F32, 5, 1},
        .b = {data, TP_DTYPE_F32, 5, 1},
        .c = data,
        .c_dtype = TP_DTYPE_F32,
        .c_stride = 4,
    };
}

Test(ops, gemm_checks)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    tpi_gemm_args args = good_gemm();
    args.rows = -3;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_SHAPE, "gemm: rows", "-3");
    args = good_gemm();
    args.c_stride = 3;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_SHAPE, "stride of c is 3", "4 columns");
    args = good_gemm();
    args.a.outer_stride = 4;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_SHAPE, "strides of a are 4 and 1", "[3, 5]");
    args = good_gemm();
    args.b.inner_stride = 2;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_SHAPE, "strides of b are 5 and 2", "[4, 5]");
    args = good_gemm();
    args.b.dtype = TP_DTYPE_BF16;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_DTYPE, "b.dtype is bf16", "f32");
    args = good_gemm();
    args.a.dtype = args.b.dtype = TP_DTYPE_I32;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_DTYPE, "a.dtype is i32", "f32, bf16 or f16");
    args = good_gemm();
    args.c_dtype = TP_DTYPE_F16;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_DTYPE, "c_dtype is f16", "f32");
    args = good_gemm();
    args.a.data = NULL;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "a.data", "NULL");
    args = good_gemm();
    args.c = NULL;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "c is NULL", "gemm");
    close_stub(&self);
}

/* Of what was packed for 9 inner indices, a product of 5. */
Test(ops, gemm_slices_of_what_is_packed)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    static const tpi_inner order = {.blocks = 1, .segments = 1, .segment = {{.length = 5}}};
    tpi_packed packed = {.data = data, .bytes = sizeof data, .first = 5, .inner = 9};
    tpi_gemm_args args = good_gemm();
    args.b_packed = &packed;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "[5, 10) is no slice", "9 packed");
    packed.first = -1;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "[-1, 4) is no slice", "9 packed");
    packed.first = 4;
    args.order = &order;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "[4, 9) is no slice", "in an order");
    args.order = NULL;
    args.a.dtype = args.b.dtype = TP_DTYPE_BF16;
    packed.first = 3;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "[3, 8) is no slice", "9 packed"); /* tears pairs */
    packed.first = 2;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "[2, 7) is no slice", "9 packed");
    packed.first = 4; /* to the end */
    cr_assert_eq(tpi_gemm(stream, &args), TP_OK, "%s", tp_ctx_message(stream->ctx));
    close_stub(&self);
}

Test(ops, gemm_epilogue_checks)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    static const float bad_dropouts[] = {-0.5f, 1.0f, 2.0f, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad_dropouts / sizeof *bad_dropouts; i++) {
        tpi_gemm_args args = good_gemm();
        args.dropout = bad_dropouts[i];
        check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "dropout is", "[0, 1)");
    }
    tpi_gemm_args args = good_gemm();
    args.accumulate = true;
    args.bias = data;
    args.bias_dtype = TP_DTYPE_F32;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "accumulate", "epilogue");
    args = good_gemm();
    args.accumulate = true;
    args.a.dtype = args.b.dtype = args.c_dtype = TP_DTYPE_BF16;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_DTYPE, "accumulating", "bf16");
    tpi_inner order = {.blocks = 2, .segments = 2, .segment = {{0, 0, 3}, {1, 3, 3}}};
    args = good_gemm();
    args.order = &order;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "order.segment.length is 3", "2");
    order.segment[1].length = 2;
    args.row_sums = data;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "row_sums", "order");
    order.segment[0].block = 1;
    order.segment[1].block = 0;
    args.row_sums = NULL;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "order.segment.block is 0", "1");
    order.blocks = 9;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "order.blocks is 9", "8");
    args = good_gemm();
    args.act_input = args.bias = data;
    args.act_input_stride = 4;
    args.bias_dtype = TP_DTYPE_F32;
    check_refused(&self, tpi_gemm(stream, &args), TP_ERR_ARGUMENT, "act_input", "bias");
    close_stub(&self);
}

Test(ops, gemm_dispatch_and_count)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    tpi_gemm_args args = good_gemm();
    cr_assert_eq(tpi_gemm(stream, &args), TP_OK, "%s", tp_last_message());
    cr_assert_eq(dispatched, 1);
    cr_assert_eq(self.ctx->issued.flops, 2.0 * 3 * 4 * 5);
    cr_assert_eq(self.ctx->issued.bytes, 4.0 * (3 * 5 + 4 * 5 + 3 * 4));
    args.inner = 0; /* an empty sum is still written */
    cr_assert_eq(tpi_gemm(stream, &args), TP_OK);
    cr_assert_eq(dispatched, 2);
    args = good_gemm();
    args.rows = 0;
    args.a.data = args.c = NULL;
    cr_assert_eq(tpi_gemm(stream, &args), TP_OK);
    cr_assert_eq(dispatched, 2);
    args = good_gemm();
    args.cols = 0;
    args.b.data = args.c = NULL;
    cr_assert_eq(tpi_gemm(stream, &args), TP_OK);
    cr_assert_eq(dispatched, 2);
    args.row_sums = data; /* sums of A's rows don't need columns */
    cr_assert_eq(tpi_gemm(stream, &args), TP_OK);
    cr_assert_eq(dispatched, 3);
    close_stub(&self);
}

Test(ops, the_three_transposes_pass)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    tpi_gemm_args args = good_gemm();
    args.a = (tpi_operand){data, TP_DTYPE_F32, 1, 3};
    args.b = (tpi_operand){data, TP_DTYPE_F32, 1, 9};
    cr_assert_eq(tpi_gemm(stream, &args), TP_OK, "%s", tp_last_message());
    args.a = (tpi_operand){data, TP_DTYPE_F32, 7, 1};
    cr_assert_eq(tpi_gemm(stream, &args), TP_OK, "%s", tp_last_message());
    args = good_gemm();
    args.rows = 1; /* the stride of a single row is never used */
    args.c_stride = args.a.outer_stride = 0;
    cr_assert_eq(tpi_gemm(stream, &args), TP_OK, "%s", tp_last_message());
    cr_assert_eq(dispatched, 3);
    close_stub(&self);
}

Test(ops, a_broken_context_issues_nothing)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    tpi_fail(self.ctx, TP_ERR_NUMERIC, "broken before");
    tpi_gemm_args gemm = good_gemm();
    cr_assert_eq(tpi_gemm(stream, &gemm), TP_ERR_NUMERIC);
    tpi_square_sum_args sum = {.result = data};
    cr_assert_eq(tpi_square_sum(stream, &sum), TP_ERR_NUMERIC);
    cr_assert_str_eq(tp_last_message(), "broken before");
    cr_assert_eq(dispatched, 0);
    close_stub(&self);
}

Test(ops, reduce_checks)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    const void *in[2] = {data, NULL};
    void *out[1] = {data};
    tpi_reduce_args good = {.inputs = 2,
                            .in = in,
                            .in_dtype = TP_DTYPE_I32,
                            .outputs = 1,
                            .out = out,
                            .out_dtype = TP_DTYPE_I32,
                            .rows = 2,
                            .cols = 3};
    tpi_reduce_args args = good;
    check_refused(&self, tpi_reduce(stream, &args), TP_ERR_ARGUMENT, "in[i]", "NULL");
    in[1] = data;
    args.out_dtype = TP_DTYPE_F32;
    check_refused(&self, tpi_reduce(stream, &args), TP_ERR_DTYPE, "out_dtype is f32", "i32");
    args = good;
    args.inputs = 65;
    check_refused(&self, tpi_reduce(stream, &args), TP_ERR_ARGUMENT, "inputs is 65", "64");
    args = good;
    args.bias = data;
    args.bias_dtype = TP_DTYPE_F32;
    check_refused(&self, tpi_reduce(stream, &args), TP_ERR_DTYPE, "epilogue", "i32");
    args.in_dtype = args.out_dtype = TP_DTYPE_F32;
    args.op = TP_REDUCE_MAX;
    check_refused(&self, tpi_reduce(stream, &args), TP_ERR_ARGUMENT, "op is 1", "sum");
    args.op = TP_REDUCE_SUM;
    args.first_col = 4;
    args.total_cols = 6;
    check_refused(&self, tpi_reduce(stream, &args), TP_ERR_ARGUMENT, "total_cols is 6", "7");
    args.total_cols = 7;
    cr_assert_eq(tpi_reduce(stream, &args), TP_OK, "%s", tp_last_message());
    cr_assert_eq(dispatched, 1);
    args.rows = 0;
    args.in = NULL;
    cr_assert_eq(tpi_reduce(stream, &args), TP_OK);
    cr_assert_eq(dispatched, 1);
    close_stub(&self);
}

Test(ops, what_is_written_for_nothing)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    tpi_square_sum_args sum = {.result = data};
    cr_assert_eq(tpi_square_sum(stream, &sum), TP_OK, "%s", tp_last_message());
    cr_assert_eq(dispatched, 1, "the sum over nothing is 0");
    tpi_xent_args xent = {
        .phase = TPI_XENT_MAX, .rows = 3, .vocabulary = 7, .first_id = 7, .dtype = TP_DTYPE_F32, .max = data};
    cr_assert_eq(tpi_xent(stream, &xent), TP_OK, "%s", tp_last_message());
    cr_assert_eq(dispatched, 2, "a shard without columns has a maximum of -inf");
    tpi_map_args map = {.rows = 3, .out_dtype = TP_DTYPE_F32};
    cr_assert_eq(tpi_map(stream, &map), TP_OK);
    tpi_norm_args norm = {.cols = 3, .dtype = TP_DTYPE_F32};
    cr_assert_eq(tpi_norm(stream, &norm), TP_OK);
    tpi_random_fill_args fill = {.cols = 3, .dtype = TP_DTYPE_F32};
    cr_assert_eq(tpi_random_fill(stream, &fill), TP_OK);
    tpi_optimizer_args optimizer = {.value_dtype = TP_DTYPE_F32};
    cr_assert_eq(tpi_optimizer(stream, &optimizer), TP_OK, "%s", tp_last_message());
    cr_assert_eq(dispatched, 2);
    close_stub(&self);
}

Test(ops, map_checks)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    tpi_map_args map = {.rows = 2,
                        .cols = 3,
                        .in_stride = 3,
                        .out = data,
                        .out_dtype = TP_DTYPE_F32,
                        .out_stride = 3,
                        .accumulate = true};
    check_refused(&self, tpi_map(stream, &map), TP_ERR_ARGUMENT, "in of an accumulating map", "NULL");
    map = (tpi_map_args){.rows = 2,
                         .cols = 3,
                         .in = data,
                         .in_dtype = TP_DTYPE_F32,
                         .in_stride = 3,
                         .out = data,
                         .out_dtype = TP_DTYPE_I32,
                         .out_stride = 3};
    check_refused(&self, tpi_map(stream, &map), TP_ERR_DTYPE, "in_dtype is f32", "i32");
    map.in_dtype = TP_DTYPE_I32;
    map.scale = 2;
    check_refused(&self, tpi_map(stream, &map), TP_ERR_DTYPE, "i32 is copied only", "scale 2");
    close_stub(&self);
}

Test(ops, norm_checks)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    tpi_norm_args norm = {.rms = true,
                          .rows = 2,
                          .cols = 3,
                          .dtype = TP_DTYPE_F32,
                          .x = data,
                          .x_stride = 3,
                          .y = data,
                          .y_stride = 3,
                          .gain = data,
                          .bias = data,
                          .epsilon = 1e-5f};
    check_refused(&self, tpi_norm(stream, &norm), TP_ERR_ARGUMENT, "RMSNorm", "bias");
    norm.epsilon = NAN;
    check_refused(&self, tpi_norm(stream, &norm), TP_ERR_ARGUMENT, "epsilon", "nan");
    tpi_norm_grad_args norm_grad = {.rows = 4,
                                    .cols = 3,
                                    .dtype = TP_DTYPE_F32,
                                    .x = data,
                                    .x_stride = 3,
                                    .dy = data,
                                    .dy_stride = 3,
                                    .stats = data,
                                    .gain_grad = data,
                                    .first_row = 5,
                                    .total_rows = 8,
                                    .virtual_count = 8};
    check_refused(&self, tpi_norm_grad(stream, &norm_grad), TP_ERR_ARGUMENT, "rows is 4", "3");
    close_stub(&self);
}

Test(ops, layer_checks)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    tpi_rope_args rope = {
        .rows = 2, .heads = 2, .head_dim = 8, .dim = 5, .dtype = TP_DTYPE_F32, .x = data, .stride = 16, .theta = 1e4};
    check_refused(&self, tpi_rope(stream, &rope), TP_ERR_SHAPE, "dim is 5", "2");
    rope.dim = 10;
    check_refused(&self, tpi_rope(stream, &rope), TP_ERR_ARGUMENT, "dim is 10", "8");
    tpi_activation_args activation = {.activation = TPI_ACT_SILU,
                                      .gated = true,
                                      .rows = 2,
                                      .cols = 3,
                                      .dtype = TP_DTYPE_F32,
                                      .x = data,
                                      .x_stride = 5,
                                      .y = data,
                                      .y_stride = 3};
    check_refused(&self, tpi_activate(stream, &activation), TP_ERR_SHAPE, "stride of x is 5", "6");
    tpi_embedding_args embedding = {.rows = 2,
                                    .cols = 3,
                                    .first_id = 5,
                                    .table_rows = 6,
                                    .vocabulary = 10,
                                    .table = data,
                                    .table_dtype = TP_DTYPE_F32,
                                    .out = data,
                                    .out_dtype = TP_DTYPE_F32};
    check_refused(&self, tpi_embedding(stream, &embedding), TP_ERR_ARGUMENT, "rows of the table is 6", "5");
    tpi_embedding_grad_args embedding_grad = {.rows = 2, .cols = 3, .dy = data, .dy_dtype = TP_DTYPE_U8};
    check_refused(&self, tpi_embedding_grad(stream, &embedding_grad), TP_ERR_DTYPE, "dy_dtype", "u8");
    embedding_grad.first_id = 5;
    embedding_grad.table_rows = 6;
    embedding_grad.vocabulary = 10;
    check_refused(&self, tpi_embedding_grad(stream, &embedding_grad), TP_ERR_ARGUMENT, "rows of the table is 6", "5");
    embedding_grad.vocabulary = -1;
    check_refused(&self, tpi_embedding_grad(stream, &embedding_grad), TP_ERR_SHAPE, "vocabulary is -1", "less than 0");
    close_stub(&self);
}

Test(ops, parameter_checks)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    tpi_optimizer_args optimizer = {.kind = TPI_OPTIMIZER_ADAMW,
                                    .elements = 5,
                                    .value = data,
                                    .value_dtype = TP_DTYPE_BF16,
                                    .grad = data,
                                    .grad_scale = data,
                                    .m = data,
                                    .v = data,
                                    .step = 1,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.99f};
    check_refused(&self, tpi_optimizer(stream, &optimizer), TP_ERR_DTYPE, "without a master", "bf16");
    optimizer.master = data;
    optimizer.step = 0;
    check_refused(&self, tpi_optimizer(stream, &optimizer), TP_ERR_ARGUMENT, "step is 0", "1");
    optimizer.step = 1;
    const tpi_weight_copies copies = {.rows = 2, .cols = 3, .forward = {.data = data}};
    optimizer.copies = &copies;
    check_refused(&self, tpi_optimizer(stream, &optimizer), TP_ERR_SHAPE, "copies of 2 rows of 3", "elements are 5");
    optimizer.elements = 6;
    check_refused(&self, tpi_optimizer(stream, &optimizer), TP_ERR_ARGUMENT, "copies->backward", "NULL");
    optimizer.copies = NULL;
    optimizer.beta2 = 1;
    check_refused(&self, tpi_optimizer(stream, &optimizer), TP_ERR_ARGUMENT, "beta2 is 1", "[0, 1)");
    tpi_xent_args xent = {.phase = TPI_XENT_GRAD,
                          .rows = 1,
                          .cols = 4,
                          .vocabulary = 4,
                          .dtype = TP_DTYPE_F32,
                          .logits = data,
                          .stride = 4,
                          .max = data,
                          .sums = data,
                          .lse = data,
                          .label_smoothing = -0.1f};
    check_refused(&self, tpi_xent(stream, &xent), TP_ERR_ARGUMENT, "label_smoothing", "[0, 1)");
    xent.label_smoothing = 0;
    check_refused(&self, tpi_xent(stream, &xent), TP_ERR_ARGUMENT, "targets", "NULL");
    tpi_random_fill_args fill = {
        .rows = 2, .cols = 3, .out = data, .dtype = TP_DTYPE_F32, .stride = 3, .first_col = 1, .total_cols = 3};
    check_refused(&self, tpi_random_fill(stream, &fill), TP_ERR_ARGUMENT, "total_cols is 3", "4");
    close_stub(&self);
}
