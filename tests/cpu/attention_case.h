/* One attention problem of the tests: its arrays, the op's run in a context, and the definition in double precision
 * with a bound of what f32 arithmetic may differ from it. */
#ifndef TPT_ATTENTION_CASE_H
#define TPT_ATTENTION_CASE_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/ops.h"
#include "cpu/cpu.h"
#include "support/data.h"
#include "support/tolerance.h"

#define CASE_HEADS 16
#define CASE_SEQUENCES 16
#define CASE_DROPOUT_KEY ((tp_random_key){0x123456789abcdefu, 0xfedcba987654321u})

typedef struct attention_case {
    tp_dtype dtype;
    int64_t heads, head_dim;
    int32_t kv_of_head[CASE_HEADS], slot_of_head[CASE_HEADS]; /* all 0 if not given */
    int64_t kv_heads, slots;                                  /* 0: 1 */
    int64_t lengths[CASE_SEQUENCES];                          /* up to the first negative one */
    bool causal;
    int64_t window;
    float dropout;
    double deviation; /* of q and k; 0: 1 */
    tp_dtype weights; /* what probabilities and dS are rounded to for products; 0: f32 */
} attention_case;

/* Arrays have rows longer than they must be, filled with what must stay. */
typedef struct attention_data {
    tpi_attention_grad_args args;
    int64_t offsets[CASE_SEQUENCES + 1];
    void *q, *k, *v, *out, *dout, *dq;
    float *lse, *dk, *dv;
    attention_case shape;
} attention_data;

#define CASE_PADDING 3

static inline int64_t case_q_stride(const attention_case *shape)
{
    return shape->heads * shape->head_dim + CASE_PADDING;
}

static inline int64_t case_kv_stride(const attention_case *shape)
{
    return shape->kv_heads * shape->head_dim + CASE_PADDING;
}

static inline void case_poison(void *data, tp_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        tpt_set(data, dtype, i, NAN);
    }
}

static inline attention_data *case_create(const attention_case *wanted, uint64_t seed)
{
    attention_data *data = tpt_allocate(sizeof *data);
    attention_case *shape = &data->shape;
    *shape = *wanted;
    shape->kv_heads = shape->kv_heads > 0 ? shape->kv_heads : 1;
    shape->slots = shape->slots > 0 ? shape->slots : 1;
    int64_t sequences = 0;
    while (sequences < CASE_SEQUENCES && shape->lengths[sequences] >= 0) {
        data->offsets[sequences + 1] = data->offsets[sequences] + shape->lengths[sequences];
        sequences++;
    }
    const int64_t rows = data->offsets[sequences], wide = case_q_stride(shape), narrow = case_kv_stride(shape);
    const double deviation = shape->deviation > 0 ? shape->deviation : 1;
    data->q = tpt_new_normal(shape->dtype, rows * wide, seed, deviation);
    data->k = tpt_new_normal(shape->dtype, rows * narrow, seed + 1, deviation);
    data->v = tpt_new_normal(shape->dtype, rows * narrow, seed + 2, 1);
    data->dout = tpt_new_normal(shape->dtype, rows * wide, seed + 3, 1);
    data->out = tpt_array(shape->dtype, rows * wide);
    data->dq = tpt_array(shape->dtype, rows * wide);
    data->lse = tpt_array(TP_DTYPE_F32, shape->heads * rows);
    data->dk = tpt_array(TP_DTYPE_F32, shape->slots * rows * shape->head_dim);
    data->dv = tpt_array(TP_DTYPE_F32, shape->slots * rows * shape->head_dim);
    data->args = (tpi_attention_grad_args){.forward = {.rows = rows,
                                                       .heads = shape->heads,
                                                       .kv_heads = shape->kv_heads,
                                                       .head_dim = shape->head_dim,
                                                       .dtype = shape->dtype,
                                                       .q = data->q,
                                                       .k = data->k,
                                                       .v = data->v,
                                                       .q_stride = wide,
                                                       .k_stride = narrow,
                                                       .v_stride = narrow,
                                                       .out = data->out,
                                                       .out_stride = wide,
                                                       .lse = data->lse,
                                                       .offsets = data->offsets,
                                                       .sequences = sequences,
                                                       .kv_of_head = shape->kv_of_head,
                                                       .scale = 1.0f / sqrtf((float)shape->head_dim),
                                                       .causal = shape->causal,
                                                       .window = shape->window,
                                                       .dropout = shape->dropout,
                                                       .dropout_key = CASE_DROPOUT_KEY,
                                                       .first_token = 1000003, /* masks take more than 32 bits */
                                                       .first_head = 2,
                                                       .total_heads = shape->heads + 3},
                                           .dout = data->dout,
                                           .dout_stride = wide,
                                           .dq = data->dq,
                                           .dq_stride = wide,
                                           .slots = shape->slots,
                                           .slot_of_head = shape->slot_of_head,
                                           .dk = data->dk,
                                           .dv = data->dv};
    return data;
}

static inline void case_destroy(attention_data *data)
{
    void *arrays[] = {data->q, data->k, data->v, data->dout, data->out, data->dq, data->lse, data->dk, data->dv, data};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        free(arrays[i]);
    }
}

/* ---- the op ---- */

static inline tp_ctx *case_context(tp_isa isa, int threads)
{
    tp_ctx *ctx = NULL;
    const tp_ctx_desc desc = {.isa = isa, .threads = threads};
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK, "%s", tp_last_message());
    return ctx;
}

/* Poisons all results, then runs forward. */
static inline void case_forward(tp_ctx *ctx, attention_data *data)
{
    const attention_case *shape = &data->shape;
    case_poison(data->out, shape->dtype, data->args.forward.rows * case_q_stride(shape));
    case_poison(data->lse, TP_DTYPE_F32, shape->heads * data->args.forward.rows);
    cr_assert_eq(tpi_cpu_table_of(ctx)->attention(ctx, &data->args.forward), TP_OK);
}

/* Needs what forward left. */
static inline void case_backward(tp_ctx *ctx, attention_data *data)
{
    const attention_case *shape = &data->shape;
    const int64_t rows = data->args.forward.rows;
    case_poison(data->dq, shape->dtype, rows * case_q_stride(shape));
    case_poison(data->dk, TP_DTYPE_F32, shape->slots * rows * shape->head_dim);
    case_poison(data->dv, TP_DTYPE_F32, shape->slots * rows * shape->head_dim);
    cr_assert_eq(tpi_cpu_table_of(ctx)->attention_grad(ctx, &data->args), TP_OK);
}

static inline bool case_same_forward(const attention_data *a, const attention_data *b)
{
    const attention_case *shape = &a->shape;
    const int64_t rows = a->args.forward.rows;
    return tpt_same_bits("out", a->out, b->out, shape->dtype, rows * case_q_stride(shape)) &&
           tpt_same_bits("lse", a->lse, b->lse, TP_DTYPE_F32, shape->heads * rows);
}

static inline bool case_same_backward(const attention_data *a, const attention_data *b)
{
    const attention_case *shape = &a->shape;
    const int64_t rows = a->args.forward.rows, elements = shape->slots * rows * shape->head_dim;
    return tpt_same_bits("dq", a->dq, b->dq, shape->dtype, rows * case_q_stride(shape)) &&
           tpt_same_bits("dk", a->dk, b->dk, TP_DTYPE_F32, elements) &&
           tpt_same_bits("dv", a->dv, b->dv, TP_DTYPE_F32, elements);
}

static inline void case_run(tp_isa isa, int threads, attention_data *data, bool backward)
{
    tp_ctx *ctx = case_context(isa, threads);
    case_forward(ctx, data);
    if (backward)
        case_backward(ctx, data);
    tp_ctx_destroy(ctx);
}

/* The results of every instruction set and of 1 to 3 threads have the bits of the portable set on one. */
static inline void case_same_everywhere(const attention_case *cases, size_t count, bool backward)
{
    for (size_t i = 0; i < count; i++) {
        attention_data *want = case_create(&cases[i], 7), *got = case_create(&cases[i], 7);
        case_run(TP_ISA_PORTABLE, 1, want, backward);
        for (tp_isa isa = TP_ISA_PORTABLE; isa < TP_ISA_COUNT; isa++) {
            int least = backward && isa == TP_ISA_PORTABLE ? 3 : 1; /* it is slow */
            for (int threads = least; threads <= 3 && tp_isa_available(isa); threads++) {
                case_run(isa, threads, got, backward);
                cr_assert((backward ? case_same_backward : case_same_forward)(got, want), "case %zu, %s, %d threads", i,
                          tp_isa_name(isa), threads);
            }
        }
        case_destroy(want);
        case_destroy(got);
    }
}

/* ---- the definition, in double precision ---- */

/* Dense arrays: q, out, dout, dq [rows, heads, head_dim]; k, v [rows, kv_heads, head_dim]; dk, dv [slots, rows,
 * head_dim]; lse [heads, rows]. bound_x[i]: how far from x[i] a result in the case's dtype and f32 arithmetic may lie.
 */
typedef struct attention_reference {
    double *q, *k, *v, *dout;
    double *out, *lse, *dq, *dk, *dv;
    double *bound_out, *bound_lse, *bound_dq, *bound_dk, *bound_dv;
    double *row; /* scores, then probabilities of one query */
} attention_reference;

static inline double *dense_copy(const void *from, tp_dtype dtype, int64_t rows, int64_t cols, int64_t stride)
{
    double *to = tpt_allocate((size_t)(rows * cols) * sizeof *to);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            to[r * cols + c] = tpt_get(from, dtype, r * stride + c);
        }
    }
    return to;
}

static inline attention_reference reference_create(const attention_data *data)
{
    const attention_case *shape = &data->shape;
    const int64_t rows = data->args.forward.rows, wide = shape->heads * shape->head_dim,
                  narrow = shape->kv_heads * shape->head_dim;
    const size_t out = (size_t)(rows * wide) * sizeof(double),
                 key = (size_t)(shape->slots * rows * shape->head_dim) * sizeof(double);
    const size_t lse = (size_t)(shape->heads * rows) * sizeof(double);
    return (attention_reference){.q = dense_copy(data->q, shape->dtype, rows, wide, case_q_stride(shape)),
                                 .k = dense_copy(data->k, shape->dtype, rows, narrow, case_kv_stride(shape)),
                                 .v = dense_copy(data->v, shape->dtype, rows, narrow, case_kv_stride(shape)),
                                 .dout = dense_copy(data->dout, shape->dtype, rows, wide, case_q_stride(shape)),
                                 .out = tpt_allocate(out),
                                 .lse = tpt_allocate(lse),
                                 .dq = tpt_allocate(out),
                                 .dk = tpt_allocate(key),
                                 .dv = tpt_allocate(key),
                                 .bound_out = tpt_allocate(out),
                                 .bound_lse = tpt_allocate(lse),
                                 .bound_dq = tpt_allocate(out),
                                 .bound_dk = tpt_allocate(key),
                                 .bound_dv = tpt_allocate(key),
                                 .row = tpt_allocate((size_t)rows * sizeof(double))};
}

static inline void reference_destroy(attention_reference *r)
{
    double *arrays[] = {r->q,  r->k,         r->v,         r->dout,     r->out,      r->lse,      r->dq, r->dk,
                        r->dv, r->bound_out, r->bound_lse, r->bound_dq, r->bound_dk, r->bound_dv, r->row};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        free(arrays[i]);
    }
}

static inline bool case_sees(const attention_case *shape, int64_t query, int64_t key)
{
    if (shape->causal && key > query) {
        return false;
    }
    return shape->window == 0 || (query - key < shape->window && key - query < shape->window);
}

static inline double case_kept(const attention_data *data, int64_t row, int64_t head, int64_t key)
{
    const tpi_attention_args *args = &data->args.forward;
    if (args->dropout == 0) {
        return 1;
    }
    const uint64_t line = (uint64_t)((args->first_token + row) * args->total_heads + args->first_head + head);
    const bool kept =
        tp_random_u32(args->dropout_key, (line << 24) + (uint64_t)key) >= tp_random_threshold(args->dropout);
    return kept ? 1 / (1 - (double)args->dropout) : 0;
}

static inline double dot(const double *a, const double *b, int64_t n, double *magnitude)
{
    double sum = 0;
    *magnitude = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
        *magnitude += fabs(a[i] * b[i]);
    }
    return sum;
}

/* Scores of one row as row[key], and a bound of their errors, which is returned: a probability is wrong by at most
 * twice that, and by what exp and the sum add. */
static inline double reference_scores(const attention_data *data, attention_reference *r, int64_t sequence,
                                      int64_t query, int64_t head)
{
    const attention_case *shape = &data->shape;
    const int64_t first = data->offsets[sequence], length = data->offsets[sequence + 1] - first, d = shape->head_dim,
                  rows = first + query;
    const double scale = data->args.forward.scale;
    double largest = -INFINITY, sum = 0, error = 0, magnitude;
    for (int64_t j = 0; j < length; j++) {
        r->row[j] = -INFINITY;
        if (case_sees(shape, query, j)) {
            const double *key = r->k + ((first + j) * shape->kv_heads + shape->kv_of_head[head]) * d;
            r->row[j] = scale * dot(r->q + (rows * shape->heads + head) * d, key, d, &magnitude);
            error = fmax(error, tpt_tolerance(TP_DTYPE_F32, d, scale * magnitude));
            largest = fmax(largest, r->row[j]);
        }
    }
    for (int64_t j = 0; j < length; j++) {
        sum += exp(r->row[j] - largest);
    }
    const double lse = largest + log(sum);
    for (int64_t j = 0; j < length; j++) {
        r->row[j] = exp(r->row[j] - lse);
    }
    r->lse[head * data->args.forward.rows + rows] = lse;
    r->bound_lse[head * data->args.forward.rows + rows] = error + tpt_tolerance(TP_DTYPE_F32, length, fabs(lse) + 1);
    return 2 * error + tpt_tolerance(TP_DTYPE_F32, length, fabs(lse) + 1);
}

/* Rounding to f16 also adds up to half its smallest subnormal, which matters for weights next to zero. */
static inline double weight_floor(const attention_case *shape)
{
    return shape->weights == TP_DTYPE_F16 ? 0x1p-25 / (1 - (double)shape->dropout) : 0;
}

/* Everything of one query and head. */
static inline void reference_query(const attention_data *data, attention_reference *r, int64_t sequence, int64_t query,
                                   int64_t head)
{
    const attention_case *shape = &data->shape;
    const int64_t first = data->offsets[sequence], length = data->offsets[sequence + 1] - first, d = shape->head_dim;
    const int64_t at = ((first + query) * shape->heads + head) * d, rows = data->args.forward.rows;
    const tp_dtype weights = shape->weights != TP_DTYPE_INVALID ? shape->weights : TP_DTYPE_F32;
    const double error = reference_scores(data, r, sequence, query, head), scale = data->args.forward.scale;
    double delta = 0, delta_bound = 0, magnitude;
    for (int64_t c = 0; c < d; c++) {
        double sum = 0, size = 0, floor_sum = 0;
        for (int64_t j = 0; j < length; j++) {
            const double value = r->v[((first + j) * shape->kv_heads + shape->kv_of_head[head]) * d + c];
            const double weight = r->row[j] * case_kept(data, first + query, head, j);
            sum += weight * value;
            size += weight * fabs(value);
            floor_sum += weight_floor(shape) * fabs(value);
        }
        r->out[at + c] = sum;
        r->bound_out[at + c] = error * size + tpt_tolerance(shape->dtype, length + 2, size) + floor_sum;
        delta += r->dout[at + c] * sum;
        delta_bound += fabs(r->dout[at + c]) * (r->bound_out[at + c] + tpt_tolerance(TP_DTYPE_F32, d, fabs(sum)));
    }
    for (int64_t j = 0; j < length; j++) {
        const double *key = r->k + ((first + j) * shape->kv_heads + shape->kv_of_head[head]) * d;
        const double *value = r->v + ((first + j) * shape->kv_heads + shape->kv_of_head[head]) * d;
        const double p = r->row[j], kept = case_kept(data, first + query, head, j);
        const double dp = kept * dot(r->dout + at, value, d, &magnitude), ds = p * (dp - delta);
        const double least = weight_floor(shape);
        const double ds_bound =
            least + p * (error * fabs(dp - delta) + tpt_tolerance(TP_DTYPE_F32, d + 2, kept * magnitude) + delta_bound);
        double *dk = r->dk + (shape->slot_of_head[head] * rows + first + j) * d, *bound_dk = r->bound_dk + (dk - r->dk);
        double *dv = r->dv + (dk - r->dk), *bound_dv = r->bound_dv + (dk - r->dk);
        for (int64_t c = 0; c < d; c++) {
            const double q = r->q[at + c], dout = r->dout[at + c];
            r->dq[at + c] += scale * ds * key[c];
            r->bound_dq[at + c] +=
                scale * fabs(key[c]) * (ds_bound + tpt_tolerance(shape->dtype, length + 2, fabs(ds)));
            dk[c] += scale * ds * q;
            bound_dk[c] +=
                scale * fabs(q) * (ds_bound + tpt_tolerance(weights, length * shape->heads + 2, fabs(ds)));
            dv[c] += p * kept * dout;
            bound_dv[c] +=
                fabs(dout) * (least + kept * p * (error + tpt_tolerance(weights, length * shape->heads + 2, 1)));
        }
    }
}

/* Overwrites all results and bounds. */
static inline void reference_run(const attention_data *data, attention_reference *r)
{
    const attention_case *shape = &data->shape;
    const int64_t rows = data->args.forward.rows, wide = rows * shape->heads * shape->head_dim;
    const int64_t narrow = shape->slots * rows * shape->head_dim;
    memset(r->dq, 0, (size_t)wide * sizeof(double));
    memset(r->bound_dq, 0, (size_t)wide * sizeof(double));
    double *sums[] = {r->dk, r->dv, r->bound_dk, r->bound_dv};
    for (size_t i = 0; i < 4; i++) {
        memset(sums[i], 0, (size_t)narrow * sizeof(double));
    }
    for (int64_t s = 0; s < data->args.forward.sequences; s++) {
        for (int64_t i = 0; i < data->offsets[s + 1] - data->offsets[s]; i++) {
            for (int64_t h = 0; h < shape->heads; h++) {
                reference_query(data, r, s, i, h);
            }
        }
    }
}

#endif
