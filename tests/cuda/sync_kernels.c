/* Work for mutants of barriers: every kernel that has one, at the smallest size at which all of its barriers are
 * needed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/ops.h"
#include "cuda/gpus.h"
#include "cuda/sync_work.h"
#include "support/data.h"

static const tp_dtype floats[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

void *tpt_memory_of(tpt_memory *memory, const void *host, size_t bytes)
{
    void *data = NULL, *poison = NULL;
    if (memory->status == TP_OK)
        memory->status = tp_ctx_allocate(memory->ctx, TP_MEMORY_OTHER, bytes, &data);
    if (memory->status != TP_OK)
        return NULL;
    memory->piece[memory->count].data = data;
    memory->piece[memory->count++].bytes = bytes;
    if (host == NULL) {
        poison = malloc(bytes);
        memset(poison, 0x5a, bytes);
        host = poison;
    }
    memory->status = tp_ctx_upload(memory->ctx, data, host, bytes);
    free(poison);
    return data;
}

void *tpt_memory_normal(tpt_memory *memory, tp_dtype dtype, int64_t count, uint64_t seed)
{
    void *host = tpt_new_normal(dtype, count, seed, 1);
    void *data = tpt_memory_of(memory, host, (size_t)count * tp_dtype_size(dtype));
    free(host);
    return data;
}

uint64_t tpt_memory_end(tpt_memory *memory, uint64_t hash)
{
    for (int i = 0; i < memory->count; i++) {
        unsigned char *host = calloc(1, memory->piece[i].bytes + 1);
        if (memory->status == TP_OK)
            memory->status = tp_ctx_download(memory->ctx, host, memory->piece[i].data, memory->piece[i].bytes);
        for (size_t b = 0; b < memory->piece[i].bytes; b++)
            hash = (hash ^ host[b]) * 0x100000001B3u;
        free(host);
        tp_ctx_release(memory->ctx, TP_MEMORY_OTHER, memory->piece[i].data, memory->piece[i].bytes);
    }
    memory->count = 0;
    return hash;
}

static void *zeros(tpt_memory *memory, size_t bytes)
{
    void *host = calloc(1, bytes), *data = tpt_memory_of(memory, host, bytes);
    free(host);
    return data;
}

static void issue(tpt_memory *memory, tp_status status)
{
    if (memory->status == TP_OK)
        memory->status = status;
}

/* ---- the families ------------------------------------------------------------------------------------------------ */

/* Products: four steps and a piece, so that all stages come round and the last one lies where the sums will be; rows
 * for copies of 16 bytes; a block has two tiles. number: layout of a, of b, size of tiles, dtype. */
static void gemm(tpt_memory *memory, int number)
{
    enum { INNER = 4 * 32 + 8 };
    /* for which 64 x 64, 128 x 128 and 128 x 256 are taken; f32 has no 128 x 256 */
    static const int64_t shapes[3][2] = {{256, 8}, {136, 128}, {136, 256}};
    const tp_dtype dtype = floats[number / 12];
    const bool a_columns = number & 1, b_columns = number & 2;
    const int64_t rows = shapes[number / 4 % 3][0] - (number < 4 ? 64 : 0), cols = shapes[number / 4 % 3][1];
    const tpi_gemm_args args = {
        .rows = rows,
        .cols = cols,
        .inner = INNER,
        .a = {tpt_memory_normal(memory, dtype, rows * INNER, 1), dtype, a_columns ? 1 : INNER, a_columns ? rows : 1},
        .b = {tpt_memory_normal(memory, dtype, cols * INNER, 2), dtype, b_columns ? 1 : INNER, b_columns ? cols : 1},
        .c = tpt_memory_of(memory, NULL, (size_t)(rows * cols) * sizeof(float)),
        .c_dtype = TP_DTYPE_F32,
        .c_stride = cols,
    };
    if (memory->status == TP_OK)
        issue(memory, tpi_gemm(memory->ctx->compute, &args));
}

static void row_sums(tpt_memory *memory, int number)
{
    enum { ROWS = 40, INNER = 70 };
    const tp_dtype dtype = floats[number];
    const tpi_gemm_args args = {
        .rows = ROWS,
        .inner = INNER,
        .a = {tpt_memory_normal(memory, dtype, ROWS * INNER, 1), dtype, INNER, 1},
        .b = {tpt_memory_normal(memory, dtype, INNER, 2), dtype, INNER, 1},
        .c = tpt_memory_of(memory, NULL, sizeof(float)),
        .c_dtype = TP_DTYPE_F32,
        .c_stride = 1,
        .row_sums = tpt_memory_normal(memory, TP_DTYPE_F32, ROWS, 3),
    };
    if (memory->status == TP_OK)
        issue(memory, tpi_gemm(memory->ctx->compute, &args));
}

/* Forward and gradient over several tiles of keys and queries; two query heads share a slot. */
static void attention(tpt_memory *memory, int number)
{
    enum { ROWS = 150, HEADS = 2 };
    static const int32_t kv_of_head[HEADS] = {0, 0}, slot_of_head[HEADS] = {0, 0};
    const tp_dtype dtype = floats[number / 3];
    const int64_t dim = (int64_t)64 << number % 3, wide = HEADS * dim;
    tpi_attention_grad_args args = {
        .forward = {.rows = ROWS,
                    .heads = HEADS,
                    .kv_heads = 1,
                    .head_dim = dim,
                    .dtype = dtype,
                    .q = tpt_memory_normal(memory, dtype, ROWS * wide, 1),
                    .k = tpt_memory_normal(memory, dtype, ROWS * dim, 2),
                    .v = tpt_memory_normal(memory, dtype, ROWS * dim, 3),
                    .q_stride = wide,
                    .k_stride = dim,
                    .v_stride = dim,
                    .out = tpt_memory_of(memory, NULL, (size_t)(ROWS * wide) * tp_dtype_size(dtype)),
                    .out_stride = wide,
                    .lse = tpt_memory_of(memory, NULL, sizeof(float) * HEADS * ROWS),
                    .kv_of_head = kv_of_head,
                    .scale = 0.1f},
        .dout = tpt_memory_normal(memory, dtype, ROWS * wide, 4),
        .dout_stride = wide,
        .dq = tpt_memory_of(memory, NULL, (size_t)(ROWS * wide) * tp_dtype_size(dtype)),
        .dq_stride = wide,
        .slots = 1,
        .slot_of_head = slot_of_head,
        .dk = tpt_memory_of(memory, NULL, sizeof(float) * (size_t)(ROWS * dim)),
        .dv = tpt_memory_of(memory, NULL, sizeof(float) * (size_t)(ROWS * dim)),
    };
    if (memory->status == TP_OK)
        issue(memory, tpi_attention(memory->ctx->compute, &args.forward));
    if (memory->status == TP_OK)
        issue(memory, tpi_attention_grad(memory->ctx->compute, &args));
}

static void rope(tpt_memory *memory, int number)
{
    enum { ROWS = 70, HEADS = 2, DIM = 32 };
    const tp_dtype dtype = floats[number / 4];
    const int64_t gap = number / 2 % 2; /* rows that are not aligned */
    const tpi_rope_args args = {.rows = ROWS,
                                .heads = HEADS,
                                .head_dim = DIM,
                                .dim = DIM,
                                .x = tpt_memory_normal(memory, dtype, ROWS * (HEADS * DIM + gap), 1),
                                .dtype = dtype,
                                .stride = HEADS * DIM + gap,
                                .theta = 10000,
                                .inverse = number % 2};
    if (memory->status == TP_OK)
        issue(memory, tpi_rope(memory->ctx->compute, &args));
}

/* All phases, without and with smoothed labels; the last one has more rows than one turn of the loss adds. */
static void cross_entropy(tpt_memory *memory, int number)
{
    const int64_t rows = number == 6 ? 1030 : 40, cols = number == 6 ? 3 : 70;
    const tp_dtype dtype = floats[number % 3];
    int32_t *targets = calloc((size_t)rows, sizeof *targets);
    for (int64_t i = 0; i < rows; i++)
        targets[i] = (int32_t)(i % cols);
    tpi_xent_args args = {.rows = rows,
                          .cols = cols,
                          .vocabulary = cols,
                          .logits = tpt_memory_normal(memory, dtype, rows * cols, 1),
                          .dtype = dtype,
                          .stride = cols,
                          .targets = tpt_memory_of(memory, targets, (size_t)rows * sizeof *targets),
                          .max = zeros(memory, (size_t)rows * sizeof(float)),
                          .sums = zeros(memory, (size_t)rows * 3 * sizeof(float)),
                          .loss = zeros(memory, (size_t)rows * sizeof(float)),
                          .lse = zeros(memory, (size_t)rows * sizeof(float)),
                          .total = zeros(memory, 2 * sizeof(float)),
                          .label_smoothing = number >= 3 && number < 6 ? 0.1f : 0.0f,
                          .loss_scale = 1};
    free(targets);
    for (int phase = TPI_XENT_MAX; phase <= TPI_XENT_GRAD && memory->status == TP_OK; phase++) {
        args.phase = (tpi_xent_phase)phase;
        issue(memory, tpi_xent(memory->ctx->compute, &args));
    }
}

/* Forward, and all gradients; more rows than wait in shared memory at once. Bits of number: root mean squares, rows
 * that are not aligned; then the dtype. */
static void norm(tpt_memory *memory, int number)
{
    enum { ROWS = 790, MOST_COLS = 40 };
    const tp_dtype dtype = floats[number / 4];
    const int64_t cols = number & 2 ? 37 : MOST_COLS, bytes = (int64_t)tp_dtype_size(dtype);
    const tpi_norm_args forward = {.rms = number & 1,
                                   .rows = ROWS,
                                   .cols = cols,
                                   .dtype = dtype,
                                   .x = tpt_memory_normal(memory, dtype, ROWS * cols, 1),
                                   .x_stride = cols,
                                   .gain = tpt_memory_normal(memory, dtype, cols, 2),
                                   .epsilon = 1e-5f,
                                   .y = tpt_memory_of(memory, NULL, (size_t)(ROWS * cols * bytes)),
                                   .y_stride = cols,
                                   .stats = zeros(memory, sizeof(float) * 2 * ROWS)};
    const tpi_norm_grad_args backward = {.rms = forward.rms,
                                         .rows = ROWS,
                                         .cols = cols,
                                         .dtype = dtype,
                                         .x = forward.x,
                                         .x_stride = cols,
                                         .gain = forward.gain,
                                         .stats = forward.stats,
                                         .dy = tpt_memory_normal(memory, dtype, ROWS * cols, 3),
                                         .dy_stride = cols,
                                         .residual = tpt_memory_normal(memory, dtype, ROWS * cols, 4),
                                         .residual_stride = cols,
                                         .dx = tpt_memory_of(memory, NULL, (size_t)(ROWS * cols * bytes)),
                                         .dx_stride = cols,
                                         .gain_grad = zeros(memory, sizeof(float) * 2 * MOST_COLS),
                                         .bias_grad = forward.rms ? NULL : zeros(memory, sizeof(float) * 2 * MOST_COLS),
                                         .total_rows = ROWS,
                                         .virtual_count = 2};
    if (memory->status == TP_OK)
        issue(memory, tpi_norm(memory->ctx->compute, &forward));
    tpi_norm_grad_args plain = backward; /* two readers of rows instead of three */
    plain.residual = NULL;
    plain.gain_grad = plain.bias_grad = NULL;
    plain.dx = tpt_memory_of(memory, NULL, (size_t)(ROWS * cols * bytes));
    if (memory->status == TP_OK)
        issue(memory, tpi_norm_grad(memory->ctx->compute, &backward));
    if (memory->status == TP_OK)
        issue(memory, tpi_norm_grad(memory->ctx->compute, &plain));
}

static void square_sum(tpt_memory *memory, int number)
{
    enum { ROWS = 40, COLS = 24 };
    (void)number;
    const tpi_square_sum_args args = {.rows = ROWS,
                                      .cols = COLS,
                                      .x = tpt_memory_normal(memory, TP_DTYPE_F32, ROWS * COLS, 1),
                                      .stride = COLS,
                                      .result = zeros(memory, sizeof(float))};
    if (memory->status == TP_OK)
        issue(memory, tpi_square_sum(memory->ctx->compute, &args));
}

/* Tokens sorted by id: by one block; by several, the last one not full; with so many rows that a key takes two passes;
 * and all of one id. */
static void sorted_tokens(tpt_memory *memory, int number)
{
    static const int64_t tokens[] = {700, 2100, 1500, 1500}, table[] = {300, 50, 700, 50};
    const int64_t rows = tokens[number];
    int32_t *ids = calloc((size_t)rows, sizeof *ids);
    uint32_t state = 1;
    for (int64_t i = 0; i < rows; i++) {
        state = state * 1664525u + 1013904223u;
        ids[i] = number == 3 ? 7 : (int32_t)((state >> 8) % (uint32_t)table[number]);
    }
    const tpi_embedding_grad_args args = {.rows = rows,
                                          .cols = 1,
                                          .ids = tpt_memory_of(memory, ids, (size_t)rows * sizeof *ids),
                                          .dy = tpt_memory_normal(memory, TP_DTYPE_F32, rows, 1),
                                          .dy_dtype = TP_DTYPE_F32,
                                          .table_rows = table[number],
                                          .vocabulary = table[number],
                                          .grad = zeros(memory, (size_t)table[number] * sizeof(float))};
    free(ids);
    if (memory->status == TP_OK)
        issue(memory, tpi_embedding_grad(memory->ctx->compute, &args));
}

/* Gradients of ids with many tokens and of ids with few, each with more columns than a block has threads. number:
 * columns that are not aligned, then dtype. */
static void embedding(tpt_memory *memory, int number)
{
    enum { ROWS = 600, TABLE = 40 };
    const tp_dtype dtype = floats[number / 2];
    const int64_t cols = number % 2 ? 261 : 264;
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS; i++)
        ids[i] = i % 3 == 0 ? i % TABLE : 7;
    const tpi_embedding_grad_args args = {.rows = ROWS,
                                          .cols = cols,
                                          .ids = tpt_memory_of(memory, ids, sizeof ids),
                                          .dy = tpt_memory_normal(memory, dtype, ROWS * cols, 1),
                                          .dy_dtype = dtype,
                                          .table_rows = TABLE,
                                          .vocabulary = TABLE,
                                          .grad = zeros(memory, sizeof(float) * (size_t)(TABLE * cols))};
    if (memory->status == TP_OK)
        issue(memory, tpi_embedding_grad(memory->ctx->compute, &args));
}

static const struct {
    const char *name;
    int count, multiprocessors;
    void (*run)(tpt_memory *memory, int number);
} families[] = {
    {"gemm", 36, 1, gemm},            {"row sums", 3, 1, row_sums},           {"attention", 9, 4, attention},
    {"rope", 12, 1, rope},            {"norm", 12, 1, norm},                  {"cross-entropy", 7, 1, cross_entropy},
    {"square sum", 1, 1, square_sum}, {"sorted tokens", 4, 1, sorted_tokens}, {"embedding", 6, 1, embedding},
};

static void run_kernels(const tpt_work *work, tpt_outcome *outcome)
{
    const tp_ctx_desc desc = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .threads = 1, .timeout_ms = 60000};
    tpt_memory memory = {.ctx = NULL};
    outcome->status = tp_ctx_create(&desc, &memory.ctx);
    if (outcome->status != TP_OK)
        return;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (work->arg == &families[i])
            families[i].run(&memory, work->number);
    outcome->hash = tpt_memory_end(&memory, 0xCBF29CE484222325u);
    outcome->status = memory.status;
    tp_ctx_destroy(memory.ctx);
}

bool tpt_kernel_work(int number, tpt_work *out)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; number -= families[i++].count)
        if (number < families[i].count) {
            *out = (tpt_work){.options = {.multiprocessors = families[i].multiprocessors}, .run = run_kernels,
                              .number = number, .arg = &families[i]};
            snprintf(out->name, sizeof out->name, "%s %d", families[i].name, number);
            return true;
        }
    return tpt_peer_work(number, out);
}
