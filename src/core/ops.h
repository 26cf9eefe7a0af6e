/* The op contract: one const args struct an op, read by four readers: check, cost (ops.c), the CPU and the CUDA
 * backend. Fusions are fields. Ops are issued on a stream; args structs are copied by it, but what they point to must
 * stay until the op ran.
 *
 * Bits: an op's result depends on global indices only. "chain" is a sequential f32 FMA chain in index order, started
 * from +0 (or from the value accumulated into); "tree" is the fixed binary tree of tpi_tree_* over virtual ranks. An op
 * gives the same bits for every instruction set, thread count and tile. */
#ifndef TPI_OPS_H
#define TPI_OPS_H

#include <tp/comm.h>
#include <tp/pass.h>

typedef struct tpi_stream tpi_stream;
typedef struct tpi_event tpi_event;

typedef enum tpi_activation {
    TPI_ACT_NONE = 0,
    TPI_ACT_GELU,      /* exact: x Phi(x) */
    TPI_ACT_GELU_TANH, /* the tanh form of GPT-2 */
    TPI_ACT_RELU,
    TPI_ACT_RELU2,  /* squared ReLU */
    TPI_ACT_SILU,   /* x sigmoid(x): the gate of SwiGLU */
    TPI_ACT_COUNT
} tpi_activation;

/* ---- gemm: C[rows, cols] = finish(sum over k of A[r, k] * B[c, k]) (+ C) ----------------------------------------- */

#define TPI_MAX_BLOCKS TP_VIRTUAL_RANKS
#define TPI_MAX_SEGMENTS (TP_VIRTUAL_RANKS * 3)

/* The order of the inner sum: `blocks` chains, each over its segments of inner indices in array order; the blocks are
 * combined by the tree. Inner indices in no segment don't take part (a shared kv head counted by its first holder
 * only). Blocks without a segment add +0. */
typedef struct tpi_inner {
    int blocks;
    int segments;
    struct {
        int block; /* ascending */
        int64_t begin, length;
    } segment[TPI_MAX_SEGMENTS];
} tpi_inner;

/* Element (i, k) is data[i * outer_stride + k * inner_stride]; one of the strides is 1. */
typedef struct tpi_operand {
    const void *data;
    tp_dtype dtype; /* f32, bf16 or f16; the same for a and b */
    int64_t outer_stride, inner_stride;
} tpi_operand;

/* A right operand packed beforehand for one backend's micro-kernel, in the order of one tpi_inner. */
typedef struct tpi_packed {
    void *data;
    size_t bytes;
    /* A product over a slice of what was packed: its inner indices are [first, first + the product's) of `inner` ones,
     * without an order. Of bf16 the slice begins and ends at even indices, or at the end. inner 0: all of it. */
    int64_t first, inner;
} tpi_packed;

typedef struct tpi_gemm_args {
    int64_t rows, cols, inner;
    tpi_operand a, b;
    const tpi_packed *b_packed; /* made by the backend's gemm_pack from b and the same `order`, read when the GEMM is
                                 * issued; NULL, or without memory: packed in the call */
    const tpi_inner *order;     /* NULL: one chain over all of inner */
    void *c;
    tp_dtype c_dtype; /* f32, or the operands' dtype */
    int64_t c_stride;
    bool accumulate; /* the chain starts from c: c f32, order NULL, no epilogue */
    bool past_caches; /* c is not read soon: where it helps, it is not left in caches */
    /* Epilogue, in f32 on the tree's root: x = sum + bias; pre = round(x); x = act(x); x = dropout(x) + residual; c =
     * round(x). The activation is applied to the unrounded x. act_grad: x = sum * act'(act_input) instead (act' read at
     * the stored pre-activation; without bias and pre). An empty inner sum is +0, and is finished like any other. */
    const void *bias; /* [cols], bias_dtype */
    tp_dtype bias_dtype;
    tpi_activation activation;
    void *pre; /* [rows, cols], c_dtype, stride pre_stride; NULL: not kept */
    int64_t pre_stride;
    const void *act_input; /* [rows, cols], c_dtype, stride act_input_stride: multiply by activation' of it */
    int64_t act_input_stride;
    const void *residual; /* [rows, cols], c_dtype */
    int64_t residual_stride;
    float dropout;
    tp_random_key dropout_key;
    int64_t first_row; /* global row of row 0; mask index = (first_row + r) * cols + c */
    /* row_sums[r] = chain over k of A[r, k] continued from row_sums[r] (the bias gradient inside a weight gradient),
     * also when cols is 0. f32; order NULL. */
    float *row_sums;
} tpi_gemm_args;

/* ---- reduce: out[i] = finish(tree over inputs of in[i]) ---------------------------------------------------------- */

typedef struct tpi_reduce_args {
    tp_reduce_op op;
    int inputs; /* 1..64; NULL pointers are not allowed */
    const void *const *in; /* [inputs] dense [rows, cols]; the array must stay until the op ran */
    tp_dtype in_dtype;
    int outputs; /* the same result is written to each; an input may be an output */
    void *const *out;
    tp_dtype out_dtype;
    int64_t rows, cols;
    /* Few inputs and one output may be given by value instead, with in and out NULL. */
    const void *leaf[TP_VIRTUAL_RANKS + 1];
    void *single;
    /* The virtual tree is over `inputs` leaves: pairwise neighbours, distance doubling. */
    const void *bias; /* [cols] */
    tp_dtype bias_dtype;
    const void *residual; /* [rows, cols] out_dtype, dense */
    float dropout;
    tp_random_key dropout_key;
    int64_t first_row, first_col, total_cols; /* mask index = (first_row + r) * total_cols + first_col + c; total_cols
                                               * 0: cols */
} tpi_reduce_args;

/* ---- element-wise ------------------------------------------------------------------------------------------------ */

/* out = scale * in, rounded; dtypes may differ (cast). in NULL: out = 0. Rows have strides, so it copies sub-matrices
 * too. dropout > 0: the mask is applied (forward and backward are the same op). accumulate: out(f32) = out + scale *
 * in. */
typedef struct tpi_map_args {
    int64_t rows, cols;
    const void *in;
    tp_dtype in_dtype;
    int64_t in_stride;
    void *out;
    tp_dtype out_dtype;
    int64_t out_stride;
    float scale; /* 0 means 1 */
    bool accumulate;
    float dropout;
    tp_random_key dropout_key;
    int64_t first_row; /* mask index = (first_row + r) * cols + c */
} tpi_map_args;

/* Activation of [rows, cols]. gated: x is [rows, 2*cols] = [gate | up]; y = act(gate) * up.
 * backward (dy != NULL): dx from dy and x; gated: dx is [rows, 2*cols] too; dx may be dy (x where gated); y is written
 * too if not NULL. */
typedef struct tpi_activation_args {
    tpi_activation activation;
    bool gated;
    int64_t rows, cols;
    tp_dtype dtype;
    const void *x;
    int64_t x_stride;
    void *y; /* forward; may be NULL in backward */
    int64_t y_stride;
    const void *dy;
    int64_t dy_stride;
    void *dx;
    int64_t dx_stride;
} tpi_activation_args;

/* Rotary position embedding, in place on `heads` consecutive heads of each row: pairs (i, i + dim/2) of the first `dim`
 * entries rotated by position * theta^(-2i/dim) (Su et al. 2021; halves paired as in Llama's Hugging Face form). Angles
 * are computed in double, cos and sin rounded to f32. inverse: the transpose, for backward. */
typedef struct tpi_rope_args {
    int64_t rows, heads, head_dim, dim;
    void *x;
    tp_dtype dtype;
    int64_t stride;
    const int32_t *positions; /* [rows]; NULL: from offsets */
    const int64_t *offsets;   /* [sequences + 1], host memory; NULL: equal lengths, and sequences 0 means 1 */
    int64_t sequences;
    double theta;
    bool inverse;
} tpi_rope_args;

/* ---- norm -------------------------------------------------------------------------------------------------------- */

/* LayerNorm: y = (x - mean) * rstd * gain + bias, rstd = 1/sqrt(var + eps), two-pass variance. RMSNorm (rms): y = x *
 * rstd * gain, rstd = 1/sqrt(mean(x^2) + eps). One row's sums are one fixed order of the row (never split by a layout).
 * stats: [rows, 2] f32 mean, rstd. */
typedef struct tpi_norm_args {
    bool rms;
    int64_t rows, cols;
    tp_dtype dtype;
    const void *x;
    int64_t x_stride;
    const void *gain; /* [cols], dtype */
    const void *bias; /* LayerNorm only; may be NULL */
    float epsilon;
    void *y;
    int64_t y_stride;
    float *stats; /* may be NULL in forward */
} tpi_norm_args;

typedef struct tpi_norm_grad_args {
    bool rms;
    int64_t rows, cols;
    tp_dtype dtype;
    const void *x;
    int64_t x_stride;
    const void *gain;
    const float *stats;
    const void *dy;
    int64_t dy_stride;
    const void *residual; /* optional [rows, cols] added to dx in f32 before rounding (the gradient that bypasses the
                           * norm) */
    int64_t residual_stride;
    void *dx; /* NULL: not wanted; may be dy or residual */
    int64_t dx_stride;
    /* Gain and bias gradients by virtual ranks: row r of this rank is global row first_row + r of total_rows, and
     * belongs to virtual rank v of `virtual_count` with that row in its tp_shard_range. Chain over rows in order,
     * continued from the stored value: gain_grad[(v - virtual_first) * cols + c] += dy * xhat. NULL: not wanted. */
    float *gain_grad, *bias_grad;
    int64_t first_row, total_rows;
    int64_t virtual_first, virtual_count;
} tpi_norm_grad_args;

/* ---- peer_reduce: an all-reduce over devices that reach each other's memory, one kernel a rank ------------------- */

#define TPI_PEER_RANKS 8
#define TPI_PEER_BLOCKS 16
#define TPI_PEER_STAGING_BYTES ((size_t)262144)

/* A rank's memory that its peers read and write; device memory, all zero before the first call. Calls count alike on
 * all ranks. */
typedef struct tpi_peer_memory {
    char staging[2][TPI_PEER_STAGING_BYTES]; /* used in turn: peers may still read the one while the next call writes
                                              * the other */
    unsigned flag[TPI_PEER_BLOCKS][TPI_PEER_RANKS]; /* written by the peer with that number: how many meetings its block
                                                     * has come to. Never reset */
    unsigned meetings, calls; /* of this rank; written by its last block */
    unsigned blocks_done;     /* of the call under way */
    unsigned broken;          /* a wait of this rank was given up: later calls do nothing */
} tpi_peer_memory;

/* out = finish(tree over ranks of in), as tpi_reduce. All ranks give the same shapes, dtypes and choices, and differ in
 * pointers. The kernels of all ranks must come to run at the same time: they wait for each other. A wait that takes too
 * long, or that `halt` ends, fails the context at its next synchronisation. Without elements nothing is issued, and
 * what later calls need is loaded. */
typedef struct tpi_peer_reduce_args {
    int rank, size;                          /* size: 2 to TPI_PEER_RANKS */
    tpi_peer_memory *memory[TPI_PEER_RANKS]; /* of all ranks, as this one addresses it */
    const unsigned *halt;                    /* of allocate_shared; not 0: give up */
    int64_t timeout_ms;
    int most_blocks; /* of the kernel: the same on all ranks, at most TPI_PEER_BLOCKS */
    bool two_shot;   /* each rank adds a part and the others copy it; else every rank adds everything. The same bits */
    tp_reduce_op op;
    tp_dtype in_dtype, out_dtype; /* f32 to any float; bf16, f16 to themselves; max and min: the same */
    int64_t rows, cols;
    const void *in; /* dense; out may be in */
    void *out;
    const void *bias; /* as in tpi_reduce_args */
    tp_dtype bias_dtype;
    const void *residual;
    float dropout;
    tp_random_key dropout_key;
    int64_t first_row;
    const tpi_norm_args *norm; /* of the rows of out, dense, in its dtype: y is written too; NULL: none. Read when
                                * issued */
    tpi_event *done;           /* recorded behind it, unless the stream is being captured; may be NULL */
} tpi_peer_reduce_args;

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* softmax(scale * Q K^T + mask) V, flash style, over local heads. Query head h (local) reads kv head kv_of_head[h]
 * (local). Mask: key j is seen by query i of the same sequence if (!causal || j <= i) && (window == 0 || i - j <
 * window) (and j - i < window when not causal). A row that sees nothing gives 0 and lse = -inf, and zero gradients.
 * Dropout on probabilities: mask index = (((first_token + row) * total_heads + first_head + h) << 24) + j, j the key's
 * place in the sequence.
 * Row sums of probabilities, dQ over keys and dK, dV over queries are in a fixed order of the sequence (never split by
 * a layout). bf16: what is multiplied with V, dO, K and Q, probabilities and dS, is rounded to bf16 first, and the
 * products are those of gemm.h. */
typedef struct tpi_attention_args {
    int64_t rows, heads, kv_heads, head_dim;
    tp_dtype dtype;
    const void *q, *k, *v; /* element (row, head, d) at row * stride + head * head_dim + d */
    int64_t q_stride, k_stride, v_stride;
    void *out; /* [rows, heads*head_dim] */
    int64_t out_stride;
    float *lse; /* [heads, rows] log-sum-exp of scaled scores; NULL in forward: not kept */
    const int64_t *offsets; /* [sequences + 1], host memory; NULL: equal lengths, and sequences 0 means 1 */
    int64_t sequences;
    const int32_t *kv_of_head; /* [heads] */
    float scale;
    bool causal;
    int64_t window;
    float dropout;
    tp_random_key dropout_key;
    int64_t first_token, first_head, total_heads;
} tpi_attention_args;

typedef struct tpi_attention_grad_args {
    tpi_attention_args forward; /* out and lse as written by forward */
    const void *dout;
    int64_t dout_stride;
    void *dq; /* dtype */
    int64_t dq_stride;
    /* dK, dV are per `slot`: query heads of one slot are added as a chain in head order; the tree over slots is the
     * caller's (tpi_reduce). slot_of_head[h] ascending; heads of one slot read one kv head. f32 dense [slots, rows,
     * head_dim]. */
    int64_t slots;
    const int32_t *slot_of_head;
    float *dk, *dv;
} tpi_attention_grad_args;

/* ---- embedding --------------------------------------------------------------------------------------------------- */

/* A wrong id: ids or positions, its place, itself, vocabulary or positions, how many there are. The same words from
 * layers and from ops of every backend. */
#define TPI_WRONG_ID "pass: %s[%lld] is %lld, must be in [0, %s %lld)"

/* out[t] = table[ids[t] - first_id] + 0 if first_id <= ids[t] < first_id + table_rows, else 0. out f32 or the table's
 * dtype. ids NULL: row positions within sequences. Every id must lie in [0, vocabulary), also without columns:
 * TP_ERR_ARGUMENT with TPI_WRONG_ID. */
typedef struct tpi_embedding_args {
    int64_t rows, cols;
    const int32_t *ids;
    const int64_t *offsets;
    int64_t sequences;
    const void *table;
    tp_dtype table_dtype;
    int64_t first_id, table_rows, vocabulary;
    void *out;
    tp_dtype out_dtype;
    bool positions;    /* that is what ids are; for the message, as first_row is: the place of ids[0] in the pass */
    int64_t first_row;
} tpi_embedding_args;

/* grad[ids[t] - first_id] += dy[t], tokens in order, f32. Ids are looked at as in forward, also without columns or rows
 * of the table. */
typedef struct tpi_embedding_grad_args {
    int64_t rows, cols;
    const int32_t *ids;
    const int64_t *offsets;
    int64_t sequences;
    const void *dy;
    tp_dtype dy_dtype;
    int64_t first_id, table_rows, vocabulary;
    float *grad;
    bool positions; /* that is what ids are */
} tpi_embedding_grad_args;

/* ---- cross-entropy over a vocabulary shard ----------------------------------------------------------------------- */

/* loss = lse - (1-e) * logit[target] - e * mean(logits) + z * lse^2, e label smoothing, z the z-loss coefficient; 0 for
 * ignored targets (< 0).
 * Phase 1: max[t] over this shard.
 * Phase 2 (after max over ranks): sums [3][rows]: sum of exp(logit - max), logit[target] if it is here else 0, sum of
 * logit - max (only with label smoothing, else 0); the first and last each the local node of the tree over virtual
 * ranks of the vocabulary.
 * Phase 3 (after sum over ranks): loss[t], lse[t], and total (f32[2]): chain over tokens of loss, and count of valid
 * tokens, added to what is there.
 * Phase 4 reads max, sums and lse of phase 3: logits become dlogits in place: loss_scale * ((softmax * (1 + 2 z lse)) -
 * (1-e) [target] - e / V), softmax = exp(logit - max) / sum; 0 for ignored.
 * A row of -inf alone: loss +inf, gradient 0. A target of `vocabulary` or more: TP_ERR_ARGUMENT names it, its place and
 * the vocabulary. */
typedef enum tpi_xent_phase { TPI_XENT_MAX = 1, TPI_XENT_SUMS, TPI_XENT_LOSS, TPI_XENT_GRAD } tpi_xent_phase;

typedef struct tpi_xent_args {
    tpi_xent_phase phase;
    int64_t rows, cols; /* cols of this shard */
    int64_t first_id, vocabulary;
    void *logits;
    tp_dtype dtype;
    int64_t stride;
    const int32_t *targets;
    float *max;  /* [rows] */
    float *sums; /* [3][rows] */
    float *loss; /* [rows] */
    float *lse;  /* [rows] */
    float *total; /* [2] */
    float label_smoothing, z_loss, loss_scale;
    const tpi_inner *order; /* virtual ranks of this shard's columns */
} tpi_xent_args;

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* result[0] = sum of x^2 over [rows, cols] by the virtual ranks in `order` along dimension `dim` (0 rows, 1 cols), tree
 * over blocks. Within a block: rows in order, each row 16 lanes (column mod 16 from the block's first) and the fixed
 * lane tree, rows added in double. Elements in no segment are not counted, but the result is NaN if one of them is not
 * finite: replicas must not differ in that. */
typedef struct tpi_square_sum_args {
    int64_t rows, cols;
    const float *x;
    int64_t stride;
    int dim;
    const tpi_inner *order;
    float *result;
} tpi_square_sum_args;

typedef enum tpi_optimizer_kind { TPI_OPTIMIZER_SGD = 0, TPI_OPTIMIZER_ADAMW } tpi_optimizer_kind;

/* The packed copies of a weight [rows, cols], for the two GEMMs that read it: x W^T, whose inner indices are the
 * columns, and dy W, whose inner indices are the rows. As gemm_pack makes them in these orders. */
typedef struct tpi_weight_copies {
    int64_t rows, cols;
    tpi_packed forward, backward;
    const tpi_inner *forward_order, *backward_order; /* NULL: one chain */
} tpi_weight_copies;

/* One parameter's update. g = grad * *grad_scale (a scalar in memory; 0 or non-finite: nothing changes).
 * AdamW (Loshchilov & Hutter 2019): m, v moments with bias correction for `step`; w -= lr * (mhat / (sqrt(vhat) + eps)
 * + decay * w). SGD: m = momentum * m + g (if m); w -= lr * (m or g, + decay * w). master NULL: value is f32 and is the
 * master. */
typedef struct tpi_optimizer_args {
    tpi_optimizer_kind kind;
    int64_t elements;
    float *master;
    void *value;
    tp_dtype value_dtype;
    const float *grad;
    float *m, *v;
    const float *grad_scale;
    float lr, beta1, beta2, epsilon, decay, momentum;
    int64_t step; /* 1 for the first */
    /* Written along with the value, where it changes; they were packed before. NULL: none. Only for backends that pack.
     * Stay until the op ran. */
    const tpi_weight_copies *copies;
} tpi_optimizer_args;

/* Element (r, c) of a [rows, cols] value = std * normal(key, (first_row + r) * total_cols + first_col + c), or
 * uniform... rounded. */
typedef struct tpi_random_fill_args {
    int64_t rows, cols;
    void *out;
    tp_dtype dtype;
    int64_t stride;
    float std;
    tp_random_key key;
    int64_t first_row, first_col, total_cols;
} tpi_random_fill_args;

/* ---- issuing: check, count, trace, dispatch (ops.c) -------------------------------------------------------------- */

/* Work of an op, from the same struct the kernel gets. */
typedef struct tpi_cost {
    double flops, bytes;
} tpi_cost;

tp_status tpi_gemm(tpi_stream *stream, const tpi_gemm_args *args);
/* Packs b for b_packed of a gemm with this order. Nothing if the backend packs nothing (out->bytes 0). */
tp_status tpi_gemm_pack(tpi_stream *stream, const tpi_operand *b, int64_t cols, int64_t inner, const tpi_inner *order,
                        const tpi_packed *out);
tp_status tpi_reduce(tpi_stream *stream, const tpi_reduce_args *args);
tp_status tpi_map(tpi_stream *stream, const tpi_map_args *args);
tp_status tpi_activate(tpi_stream *stream, const tpi_activation_args *args);
tp_status tpi_rope(tpi_stream *stream, const tpi_rope_args *args);
tp_status tpi_norm(tpi_stream *stream, const tpi_norm_args *args);
tp_status tpi_norm_grad(tpi_stream *stream, const tpi_norm_grad_args *args);
tp_status tpi_attention(tpi_stream *stream, const tpi_attention_args *args);
tp_status tpi_attention_grad(tpi_stream *stream, const tpi_attention_grad_args *args);
tp_status tpi_embedding(tpi_stream *stream, const tpi_embedding_args *args);
tp_status tpi_embedding_grad(tpi_stream *stream, const tpi_embedding_grad_args *args);
tp_status tpi_xent(tpi_stream *stream, const tpi_xent_args *args);
tp_status tpi_square_sum(tpi_stream *stream, const tpi_square_sum_args *args);
tp_status tpi_optimizer(tpi_stream *stream, const tpi_optimizer_args *args);
/* Many of them at once, none of which reads what another writes: few launches on a GPU. All are checked before the
 * first is issued. */
tp_status tpi_square_sum_list(tpi_stream *stream, const tpi_square_sum_args *args, int count);
tp_status tpi_optimizer_list(tpi_stream *stream, const tpi_optimizer_args *args, int count);
tp_status tpi_random_fill(tpi_stream *stream, const tpi_random_fill_args *args);

tpi_cost tpi_gemm_cost(const tpi_gemm_args *args);
tpi_cost tpi_attention_cost(const tpi_attention_args *args);

#endif
