/* The optimizer writes a weight's packed copies: the bytes that packing the new value gives, and the value that it has
 * without copies. */
#include "core/backend.h"
#include "cpu/machines.h"

typedef struct copies_case {
    int64_t rows, cols;
    tp_dtype dtype;
    const tpi_inner *forward, *backward; /* orders */
    float scale;
    size_t shift; /* bytes between a line's beginning and a copy's */
} copies_case;

typedef struct weight {
    void *value;
    float *master, *m, *v;
} weight;

static weight weight_new(const copies_case *c)
{
    int64_t elements = c->rows * c->cols;
    weight w = {.value = tpt_new_normal(c->dtype, elements, 3, 1),
                .master = tpt_array(TP_DTYPE_F32, elements),
                .m = tpt_array(TP_DTYPE_F32, elements),
                .v = tpt_array(TP_DTYPE_F32, elements)};

    tpt_to_f32(w.master, w.value, c->dtype, elements);
    memset(w.m, 0, (size_t)elements * sizeof(float));
    memset(w.v, 0, (size_t)elements * sizeof(float));
    return w;
}

static void weight_free(weight *w)
{
    free(w->value), free(w->master), free(w->m), free(w->v);
}

/* Packed by gemm_pack. */
static void pack(tp_ctx *ctx, const copies_case *c, const void *value, tpi_weight_copies *out)
{
    const tpi_operand forward = {value, c->dtype, c->cols, 1}, backward = {value, c->dtype, 1, c->cols};

    *out = (tpi_weight_copies){.rows = c->rows, .cols = c->cols, .forward_order = c->forward,
                               .backward_order = c->backward};
    out->forward.bytes = ctx->backend->gemm_packed_bytes(ctx, c->dtype, c->rows, c->cols, c->forward);
    out->backward.bytes = ctx->backend->gemm_packed_bytes(ctx, c->dtype, c->cols, c->rows, c->backward);
    out->forward.data = (char *)tpt_allocate(out->forward.bytes + c->shift) + c->shift;
    out->backward.data = (char *)tpt_allocate(out->backward.bytes + c->shift) + c->shift;
    cr_assert_eq(tpi_gemm_pack(ctx->compute, &forward, c->rows, c->cols, c->forward, &out->forward), TP_OK, "%s",
                 tp_last_message());
    cr_assert_eq(tpi_gemm_pack(ctx->compute, &backward, c->cols, c->rows, c->backward, &out->backward), TP_OK, "%s",
                 tp_last_message());
}

static void copies_free(const copies_case *c, tpi_weight_copies *copies)
{
    free((char *)copies->forward.data - c->shift), free((char *)copies->backward.data - c->shift);
}

static void update(tp_ctx *ctx, const copies_case *c, const weight *w, const tpi_weight_copies *copies)
{
    float *grad = tpt_new_normal(TP_DTYPE_F32, c->rows * c->cols, 5, 1);
    const tpi_optimizer_args args = {.kind = TPI_OPTIMIZER_ADAMW,
                                     .elements = c->rows * c->cols,
                                     .master = w->master,
                                     .value = w->value,
                                     .value_dtype = c->dtype,
                                     .grad = grad,
                                     .m = w->m,
                                     .v = w->v,
                                     .grad_scale = &c->scale,
                                     .lr = 0.01f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .epsilon = 1e-8f,
                                     .decay = 0.1f,
                                     .step = 2,
                                     .copies = copies};

    cr_assert_eq(tpi_optimizer(ctx->compute, &args), TP_OK, "%s", tp_last_message());
    free(grad);
}

static void check_on(tp_ctx *ctx, const copies_case *c)
{
    weight with = weight_new(c), without = weight_new(c);
    tpi_weight_copies got, want;

    pack(ctx, c, with.value, &got);
    update(ctx, c, &with, &got);
    update(ctx, c, &without, NULL);
    pack(ctx, c, without.value, &want);
    cr_assert(tpt_same_bits("value", with.value, without.value, c->dtype, c->rows * c->cols));
    cr_assert(tpt_same_bits("master", with.master, without.master, TP_DTYPE_F32, c->rows * c->cols));
    cr_assert(memcmp(got.forward.data, want.forward.data, want.forward.bytes) == 0,
              "forward copy of %lld x %lld on %s with %d threads", (long long)c->rows, (long long)c->cols,
              tp_isa_name(tp_ctx_isa(ctx)), tp_ctx_threads(ctx));
    cr_assert(memcmp(got.backward.data, want.backward.data, want.backward.bytes) == 0,
              "backward copy of %lld x %lld on %s with %d threads", (long long)c->rows, (long long)c->cols,
              tp_isa_name(tp_ctx_isa(ctx)), tp_ctx_threads(ctx));
    weight_free(&with), weight_free(&without);
    copies_free(c, &got), copies_free(c, &want);
}

/* Blocks of `length` indices each, cut into `pieces` segments that lie apart; the last indices of each in no segment,
 * and an empty block at the end. */
static tpi_inner spread(int64_t length, int pieces, int64_t left_out)
{
    tpi_inner order = {.blocks = 4};
    int64_t share = length / pieces / 3;

    for (int block = 0; block < 3; block++)
        for (int piece = 0; piece < pieces; piece++) {
            order.segment[order.segments].block = block;
            order.segment[order.segments].begin = piece * (length / pieces) + block * share;
            order.segment[order.segments++].length = share > left_out ? share - left_out : 0;
        }
    return order;
}

static void check_orders(const machines *all, copies_case c)
{
    const tpi_inner rows = spread(c.rows, 2, 0), fewer_rows = spread(c.rows, 2, 1), cols = spread(c.cols, 1, 0);
    /* As many as there are, but some twice and others never. */
    const tpi_inner twice = {.blocks = 2, .segments = 2, .segment = {{0, 0, c.rows / 2}, {1, 0, c.rows - c.rows / 2}}};
    const tpi_inner *const backward[] = {NULL, &rows, &fewer_rows, &twice};

    for (int i = 0; i < 5; i++) {
        c.backward = i < 4 ? backward[i] : NULL;
        c.forward = i == 4 ? &cols : NULL;
        for (int m = 0; m < all->count; m++)
            check_on(all->ctx[m], &c);
    }
}

Test(optimizer_copies, are_those_of_the_new_value)
{
    /* Whole parts and panels; pairs that begin at odd rows; whole panels of columns, with one row more than a part too;
     * fewer rows than a part; odd everything. */
    static const int64_t shapes[][2] = {{192, 96}, {180, 33}, {198, 64}, {192, 128}, {65, 64}, {37, 130}, {257, 71},
                                        {1, 5}, {6, 1}};
    machines all = machines_open();

    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int d = 0; d < 3; d++)
            check_orders(
                &all,
                (copies_case){.rows = shapes[s][0], .cols = shapes[s][1], .dtype = machine_floats[d], .scale = 0.5f});
    machines_close(&all);
}

/* Whole lines are written past the caches only where they are lines. */
Test(optimizer_copies, may_lie_anywhere)
{
    machines all = machines_open();

    for (int d = 0; d < 2; d++)
        for (int m = 0; m < all.count; m++)
            check_on(all.ctx[m], &(copies_case){
                                     .rows = 64, .cols = 64, .dtype = machine_floats[d], .scale = 1, .shift = 4});
    machines_close(&all);
}

Test(optimizer_copies, stay_where_nothing_changes)
{
    machines all = machines_open();
    const copies_case c = {.rows = 70, .cols = 34, .dtype = TP_DTYPE_BF16, .scale = NAN};

    for (int m = 0; m < all.count; m++)
        check_on(all.ctx[m], &c);
    machines_close(&all);
}
