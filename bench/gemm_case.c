#include "gemm_case.h"

#include "mirror.h"
#include "values.h"

#include "core/context.h"
#include "core/inner.h"

#include <stdio.h>
#include <string.h>

/* What one layer of a transformer multiplies. The cut side is `out` of a column layer, `in` of a row layer. */
typedef struct layer_shape {
    const char *name;
    int64_t out, in;
    bool row;
    int parts;
    tp_shard_part part; /* of the cut side, `parts` times */
} layer_shape;

static const layer_shape gpt2_layers[] = {
    {"qkv", 2304, 768, false, 3, {12, 64, 0}},
    {"proj", 768, 768, true, 1, {12, 64, 0}},
    {"fc", 3072, 768, false, 1, {3072, 1, 0}},
    {"fcproj", 768, 3072, true, 1, {3072, 1, 0}},
};
static const layer_shape wide_layers[] = {
    {"1k4k", 4096, 1024, false, 1, {4096, 1, 0}},
    {"4k1k", 1024, 4096, true, 1, {4096, 1, 0}},
};

static bench_product product_of(const layer_shape *layer, int64_t tokens, bench_variant variant)
{
    bench_product product = {
        .tokens = tokens, .out = layer->out, .in = layer->in, .variant = variant, .parts = layer->parts};
    snprintf(product.layer, sizeof product.layer, "%s", layer->name);
    product.tree = layer->row ? variant == BENCH_NT : variant == BENCH_NN;
    for (int i = 0; i < layer->parts; i++)
        product.part[i] = layer->part;
    return product;
}

int bench_products_preset(bench_product out[BENCH_PRODUCTS])
{
    int count = 0;
    for (int variant = 0; variant < BENCH_VARIANTS; variant++) {
        for (int i = 0; i < 4; i++)
            out[count++] = product_of(&gpt2_layers[i], 512, (bench_variant)variant);
        for (int i = 0; i < 4; i++)
            out[count++] = product_of(&gpt2_layers[i], 2048, (bench_variant)variant);
        for (int i = 0; i < 2; i++)
            out[count++] = product_of(&wide_layers[i], 512, (bench_variant)variant);
    }
    return count;
}

int bench_products_parse(const char *text, unsigned variants, bench_product out[BENCH_PRODUCTS],
                         char message[BENCH_MESSAGE])
{
    int count = 0;
    for (;;) {
        long long tokens, width, depth;
        int length = 0;
        if (sscanf(text, "%lldx%lldx%lld%n", &tokens, &width, &depth, &length) != 3 ||
            (text[length] != ',' && text[length] != '\0'))
            return bench_say(message, "--shapes: '%s' is not MxNxK,...", text);
        const long long most = 1 << 20;
        if (tokens < 1 || width < 1 || depth < 1 || tokens > most || width > most || depth > most)
            return bench_say(message, "--shapes: %lldx%lldx%lld: every size must be in [1, %lld]", tokens, width, depth,
                             most);
        layer_shape layer = {"given", width, depth, false, 1, {width, 1, 0}};
        for (int variant = 0; variant < BENCH_VARIANTS; variant++) {
            if ((variants & 1u << variant) == 0)
                continue;
            if (count == BENCH_PRODUCTS)
                return bench_say(message, "--shapes: more than %d products", BENCH_PRODUCTS);
            /* Where the order is a tree, it is over the product's own inner dimension. */
            layer.part.units = variant == BENCH_NT ? depth : width;
            out[count++] = product_of(&layer, tokens, (bench_variant)variant);
        }
        text += length;
        if (*text == '\0')
            return count;
        text++;
    }
}

/* Rows, columns and inner length. */
static void product_sizes(const bench_product *product, int64_t *rows, int64_t *cols, int64_t *inner)
{
    const bench_product *p = product;
    *rows = p->variant == BENCH_TN ? p->out : p->tokens;
    *cols = p->variant == BENCH_NT ? p->out : p->in;
    *inner = p->variant == BENCH_NT ? p->in : p->variant == BENCH_NN ? p->out : p->tokens;
}

double bench_product_flops(const bench_product *product)
{
    return 2.0 * (double)product->tokens * (double)product->out * (double)product->in;
}

void bench_product_shape(const bench_product *product, char text[48])
{
    int64_t rows, cols, inner;
    product_sizes(product, &rows, &cols, &inner);
    snprintf(text, 48, "%lldx%lldx%lld", (long long)rows, (long long)cols, (long long)inner);
}

/* Element i of an operand: a whole number in [-2, 2]. */
static int value_of(int64_t i, uint64_t salt)
{
    uint64_t x = ((uint64_t)i + salt) * 0x9E3779B97F4A7C15u;
    return (int)((x >> 40) % 5) - 2;
}

#define SALT_A 17
#define SALT_B 1000003

static double fill_value(int64_t i, uint64_t salt)
{
    return value_of(i, salt);
}

/* Operands lie in memory as the layer's tensors do: x [tokens, in], W [out, in], dy [tokens, out]. */
static void set_operands(bench_gemm *gemm)
{
    const bench_product *p = &gemm->product;
    tpi_gemm_args *args = &gemm->args;
    args->a = (tpi_operand){.data = gemm->a,
                            .dtype = gemm->dtype,
                            .outer_stride = p->variant == BENCH_NT ? p->in : p->out,
                            .inner_stride = 1};
    args->b = (tpi_operand){.data = gemm->b, .dtype = gemm->dtype, .outer_stride = p->in, .inner_stride = 1};
    if (p->variant == BENCH_TN) {
        args->a.outer_stride = 1;
        args->a.inner_stride = p->out;
    }
    if (p->variant != BENCH_NT) {
        args->b.outer_stride = 1;
        args->b.inner_stride = p->in;
    }
}

static tp_status pack_weight(bench_gemm *gemm)
{
    const tp_ctx *ctx = gemm->ctx;
    tpi_gemm_args *args = &gemm->args;
    gemm->packed.bytes = ctx->backend->gemm_packed_bytes(gemm->ctx, gemm->dtype, args->cols, args->inner, args->order);
    TPI_TRY(tp_ctx_allocate(gemm->ctx, TP_MEMORY_PARAM, gemm->packed.bytes, &gemm->packed.data));
    args->b_packed = &gemm->packed;
    return ctx->backend->gemm_pack(ctx->compute, &args->b, args->cols, args->inner, args->order, &gemm->packed);
}

tp_status bench_gemm_open(bench_gemm *gemm, tp_ctx *ctx, const bench_product *product, tp_dtype dtype,
                          bool pack_in_call)
{
    *gemm = (bench_gemm){.ctx = ctx, .product = *product, .dtype = dtype};
    tpi_gemm_args *args = &gemm->args;
    product_sizes(product, &args->rows, &args->cols, &args->inner);
    bool gradient = product->variant == BENCH_TN;
    args->c_dtype = gradient ? TP_DTYPE_F32 : dtype;
    args->c_stride = args->cols;
    args->accumulate = gradient;
    if (product->tree) {
        tpi_inner_from_parts(product->part, product->parts, 1, 0, &gemm->order);
        args->order = &gemm->order;
    }
    int64_t a = args->rows * args->inner, b = args->cols * args->inner, c = args->rows * args->cols;
    gemm->a_bytes = (size_t)a * tp_dtype_size(dtype);
    gemm->b_bytes = (size_t)b * tp_dtype_size(dtype);
    gemm->c_bytes = (size_t)c * tp_dtype_size(args->c_dtype);
    TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_SAVED, gemm->a_bytes, &gemm->a));
    TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_SAVED, gemm->b_bytes, &gemm->b));
    TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_SAVED, gemm->c_bytes, &gemm->c));
    TPI_TRY(bench_fill(ctx, gemm->a, dtype, a, fill_value, SALT_A));
    TPI_TRY(bench_fill(ctx, gemm->b, dtype, b, fill_value, SALT_B));
    TPI_TRY(bench_clear(ctx, gemm->c, gemm->c_bytes));
    args->c = gemm->c;
    set_operands(gemm);
    return gradient || pack_in_call ? TP_OK : pack_weight(gemm);
}

void bench_gemm_close(bench_gemm *gemm)
{
    if (gemm->a != NULL)
        tp_ctx_release(gemm->ctx, TP_MEMORY_SAVED, gemm->a, gemm->a_bytes);
    if (gemm->b != NULL)
        tp_ctx_release(gemm->ctx, TP_MEMORY_SAVED, gemm->b, gemm->b_bytes);
    if (gemm->c != NULL)
        tp_ctx_release(gemm->ctx, TP_MEMORY_SAVED, gemm->c, gemm->c_bytes);
    if (gemm->packed.data != NULL)
        tp_ctx_release(gemm->ctx, TP_MEMORY_PARAM, gemm->packed.data, gemm->packed.bytes);
    *gemm = (bench_gemm){0};
}

void bench_gemm_run(void *arg)
{
    bench_gemm *gemm = arg;
    gemm->status = tpi_gemm(gemm->ctx->compute, &gemm->args);
}

/* One element's exact sum. */
static int64_t exact_sum(const tpi_gemm_args *args, int64_t row, int64_t col)
{
    int64_t sum = 0;
    for (int64_t k = 0; k < args->inner; k++)
        sum += value_of(row * args->a.outer_stride + k * args->a.inner_stride, SALT_A) *
               value_of(col * args->b.outer_stride + k * args->b.inner_stride, SALT_B);
    return sum;
}

int64_t bench_gemm_wrong(bench_gemm *gemm, int64_t elements)
{
    const tpi_gemm_args *args = &gemm->args;
    bench_mirror c;
    int64_t all = args->rows * args->cols, wrong = 0;
    gemm->status = bench_mirror_open(&c, gemm->ctx, gemm->c, gemm->c_bytes);
    if (gemm->status == TP_OK)
        gemm->status = bench_clear(gemm->ctx, gemm->c, gemm->c_bytes);
    if (gemm->status == TP_OK)
        bench_gemm_run(gemm);
    if (gemm->status == TP_OK)
        gemm->status = bench_mirror_get(&c);
    /* The first and last elements, and others spread between them. */
    elements = elements < all ? elements : all;
    for (int64_t i = 0; i < elements && gemm->status == TP_OK; i++) {
        int64_t at = i + 1 == elements ? all - 1 : (int64_t)((double)all / (double)elements * (double)i);
        wrong += bench_load(c.host, args->c_dtype, at) !=
                 bench_rounded(args->c_dtype, exact_sum(args, at / args->cols, at % args->cols));
    }
    bench_mirror_close(&c);
    return gemm->status == TP_OK ? wrong : all;
}
