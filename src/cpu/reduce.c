/* Sums of up to 64 equal arrays by the fixed tree, with the epilogue of a row-parallel layer. */
#include "cpu/cpu.h"
#include "cpu/random_math.h"

#define PART_ELEMENTS 16384
#define TREE_LEVELS 7 /* 64 inputs */
#define MOST_OUTPUTS 8 /* of a plain sum */

static inline vf combine(tp_reduce_op op, vf left, vf right)
{
    switch (op) {
    case TP_REDUCE_MAX: return vf_max_nan(left, right);
    case TP_REDUCE_MIN: return vf_min_nan(left, right);
    default: return vf_add(left, right);
    }
}

/* The tree over all inputs, for n elements from `at` on. Whole nodes wait in `node` until their right neighbour comes.
 */
static inline vf reduce_tree(const tpi_reduce_args *args, tp_reduce_op op, tp_dtype dtype, int inputs, int64_t at,
                             int n)
{
    vf node[TREE_LEVELS], x = vf_zero();

    for (int i = 0; i < inputs; i++) {
        int level = 0;

        x = vf_load_any(tpi_element(args->in[i], dtype, at), dtype, n);
        for (; i >> level & 1; level++)
            x = combine(op, node[level], x);
        node[level] = x;
    }
    if ((inputs & (inputs - 1)) == 0)
        return x;
    /* What is left of an incomplete tree: from the right end leftwards. */
    for (int level = 0, found = 0; level < TREE_LEVELS; level++) {
        if (!(inputs >> level & 1))
            continue;
        x = found ? combine(op, node[level], x) : node[level];
        found = 1;
    }
    return x;
}

/* n elements of row `row` from column `col` on. */
static vf finish(const tpi_reduce_args *args, tpi_dropout *dropout, vf x, int64_t row, int64_t col, int n)
{
    int64_t total_cols = args->total_cols ? args->total_cols : args->cols;

    if (args->bias)
        x = vf_add(x, vf_load_any(tpi_element(args->bias, args->bias_dtype, col), args->bias_dtype, n));
    if (args->dropout > 0)
        x = tpi_dropout_apply(dropout, x, (uint64_t)((args->first_row + row) * total_cols + args->first_col + col));
    if (args->residual) {
        int64_t at = row * args->cols + col;

        x = vf_add(x, vf_load_any(tpi_element(args->residual, args->out_dtype, at), args->out_dtype, n));
    }
    return x;
}

/* Elements [at, end). op, dtype and inputs are constants where it is called for the common cases. */
static inline __attribute__((always_inline)) void reduce_span(const tpi_reduce_args *args, int64_t at, int64_t end,
                                                              tp_reduce_op op, tp_dtype dtype, int inputs)
{
    bool finishing = args->bias || args->residual || args->dropout > 0;
    tpi_dropout dropout;

    if (args->dropout > 0)
        tpi_dropout_init(&dropout, args->dropout, args->dropout_key);
    while (at < end) {
        int64_t row = finishing ? at / args->cols : 0, first = row * args->cols,
                row_end = finishing ? first + args->cols : end;
        int64_t stop = row_end < end ? row_end : end;

        for (int n; at < stop; at += n) {
            vf x;

            n = tpi_lanes_of(stop - at);
            x = reduce_tree(args, op, dtype, inputs, at, n);
            if (finishing)
                x = finish(args, &dropout, x, row, at - first, n);
            for (int o = 0; o < args->outputs; o++)
                vf_store_any(tpi_element_of(args->out[o], args->out_dtype, at), args->out_dtype, x, n);
        }
    }
}

/* Elements from `at` on, BLOCK at a time: the plain f32 sum, whose speed is the memory's. Returns where it stopped.
 * Every input of a block is read before an output of it is written, so outputs may be inputs. */
static inline __attribute__((always_inline)) int64_t sum_blocks(const tpi_reduce_args *args, int64_t at, int64_t end,
                                                                int inputs, int outputs)
{
    enum { VECTORS = 4, BLOCK = VECTORS * TPI_LANES };
    const float *in[TP_VIRTUAL_RANKS];
    float *out[MOST_OUTPUTS];

    for (int i = 0; i < inputs; i++)
        in[i] = args->in[i];
    for (int o = 0; o < outputs; o++)
        out[o] = args->out[o];
    for (; end - at >= BLOCK; at += BLOCK) {
        vf node[TP_VIRTUAL_RANKS][VECTORS];

        for (int i = 0; i < inputs; i++)
            for (int v = 0; v < VECTORS; v++)
                node[i][v] = vf_load(in[i] + at + v * TPI_LANES);
        for (int distance = 1; distance < inputs; distance *= 2)
            for (int i = 0; i + distance < inputs; i += 2 * distance)
                for (int v = 0; v < VECTORS; v++)
                    node[i][v] = vf_add(node[i][v], node[i + distance][v]);
        for (int o = 0; o < outputs; o++)
            for (int v = 0; v < VECTORS; v++)
                vf_store(out[o] + at + v * TPI_LANES, node[0][v]);
    }
    return at;
}

static int64_t sum_plain(const tpi_reduce_args *args, int64_t at, int64_t end)
{
    int outputs = args->outputs;

    if (args->bias || args->residual || args->dropout > 0 || args->out_dtype != TP_DTYPE_F32 || outputs > MOST_OUTPUTS)
        return at;
    switch (args->inputs) {
    case 1: return sum_blocks(args, at, end, 1, outputs);
    case 2:
        return outputs == 1   ? sum_blocks(args, at, end, 2, 1)
               : outputs == 2 ? sum_blocks(args, at, end, 2, 2)
                              : sum_blocks(args, at, end, 2, outputs);
    case 4: return sum_blocks(args, at, end, 4, outputs);
    case 8: return sum_blocks(args, at, end, 8, outputs);
    default: return at;
    }
}

static void reduce_floats(const tpi_reduce_args *args, int64_t begin, int64_t end)
{
    if (args->op == TP_REDUCE_SUM && args->in_dtype == TP_DTYPE_F32) {
        begin = sum_plain(args, begin, end);
        switch (args->inputs) {
        case 1: reduce_span(args, begin, end, TP_REDUCE_SUM, TP_DTYPE_F32, 1); return;
        case 2: reduce_span(args, begin, end, TP_REDUCE_SUM, TP_DTYPE_F32, 2); return;
        case 4: reduce_span(args, begin, end, TP_REDUCE_SUM, TP_DTYPE_F32, 4); return;
        case 8: reduce_span(args, begin, end, TP_REDUCE_SUM, TP_DTYPE_F32, 8); return;
        default: break;
        }
    }
    reduce_span(args, begin, end, args->op, args->in_dtype, args->inputs);
}

static int64_t integer_at(const void *data, tp_dtype dtype, int64_t at)
{
    switch (dtype) {
    case TP_DTYPE_I32: return ((const int32_t *)data)[at];
    case TP_DTYPE_I64: return ((const int64_t *)data)[at];
    default: return ((const uint8_t *)data)[at];
    }
}

/* Sums wrap: unsigned arithmetic, cut to the type's width. */
static void store_integer(void *data, tp_dtype dtype, int64_t at, int64_t value)
{
    switch (dtype) {
    case TP_DTYPE_I32: {
        uint32_t bits = (uint32_t)value;
        memcpy((int32_t *)data + at, &bits, sizeof bits);
        return;
    }
    case TP_DTYPE_I64: ((int64_t *)data)[at] = value; return;
    default: ((uint8_t *)data)[at] = (uint8_t)value;
    }
}

static void reduce_integers(const tpi_reduce_args *args, int64_t begin, int64_t end)
{
    for (int64_t at = begin; at < end; at++) {
        int64_t result = integer_at(args->in[0], args->in_dtype, at);

        for (int i = 1; i < args->inputs; i++) {
            int64_t x = integer_at(args->in[i], args->in_dtype, at);

            if (args->op == TP_REDUCE_SUM)
                result = (int64_t)((uint64_t)result + (uint64_t)x);
            else if ((args->op == TP_REDUCE_MAX) == (x > result))
                result = x;
        }
        for (int o = 0; o < args->outputs; o++)
            store_integer(args->out[o], args->out_dtype, at, result);
    }
}

static void reduce_part(void *arg, int64_t part, int worker)
{
    const tpi_reduce_args *args = arg;
    int64_t elements = args->rows * args->cols, begin = part * PART_ELEMENTS;
    int64_t end = begin + PART_ELEMENTS < elements ? begin + PART_ELEMENTS : elements;

    (void)worker;
    if (tpi_is_float(args->in_dtype))
        reduce_floats(args, begin, end);
    else
        reduce_integers(args, begin, end);
}

tp_status CPU(reduce)(tp_ctx *ctx, const void *args)
{
    tpi_reduce_args work = *(const tpi_reduce_args *)args;
    int64_t elements = work.rows * work.cols;

    if (!work.in)
        work.in = work.leaf;
    if (!work.out)
        work.out = &work.single;
    if (work.inputs < 1 || work.inputs > 1 << (TREE_LEVELS - 1))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "reduce: %d inputs, must be 1 to %d", work.inputs,
                          1 << (TREE_LEVELS - 1));
    if (tpi_is_float(work.in_dtype) ? !tpi_is_float(work.out_dtype) : work.in_dtype != work.out_dtype)
        return tpi_refuse(ctx, TP_ERR_DTYPE, "reduce: %s can't be reduced to %s", tp_dtype_name(work.in_dtype),
                          tp_dtype_name(work.out_dtype));
    tpi_cpu_parallel(ctx, (elements + PART_ELEMENTS - 1) / PART_ELEMENTS, reduce_part, &work);
    return TP_OK;
}

static inline __attribute__((always_inline)) void sum_two(tp_dtype dtype, void *out, const void *left,
                                                          const void *right, int64_t elements)
{
    enum { VECTORS = 4 };
    int64_t at = 0;

    for (; elements - at >= VECTORS * TPI_LANES; at += VECTORS * TPI_LANES) {
        vf x[VECTORS];

        for (int v = 0; v < VECTORS; v++)
            x[v] = vf_add(vf_load_any(tpi_element(left, dtype, at + v * TPI_LANES), dtype, TPI_LANES),
                          vf_load_any(tpi_element(right, dtype, at + v * TPI_LANES), dtype, TPI_LANES));
        for (int v = 0; v < VECTORS; v++)
            vf_store_any(tpi_element_of(out, dtype, at + v * TPI_LANES), dtype, x[v], TPI_LANES);
    }
    for (int n; at < elements; at += n) {
        n = tpi_lanes_of(elements - at);
        vf x = vf_add(vf_load_any(tpi_element(left, dtype, at), dtype, n),
                      vf_load_any(tpi_element(right, dtype, at), dtype, n));
        vf_store_any(tpi_element_of(out, dtype, at), dtype, x, n);
    }
}

void CPU(sum_pair)(tp_dtype dtype, void *out, const void *left, const void *right, int64_t elements)
{
    switch (dtype) {
    case TP_DTYPE_F32: sum_two(TP_DTYPE_F32, out, left, right, elements); return;
    case TP_DTYPE_BF16: sum_two(TP_DTYPE_BF16, out, left, right, elements); return;
    default: sum_two(dtype, out, left, right, elements);
    }
}
