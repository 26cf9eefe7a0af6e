/* Head and loss as one module: logits of this rank's vocabulary live in saved memory, where backward turns them into
 * their gradient. Structs of views are the host's records of that memory. */
#include "layers/head.h"

#include <inttypes.h>
#include <tp/linear.h>

#include "comm/table.h"
#include "core/context.h"
#include "layers/loss.h"
#include "layers/record.h"

typedef struct head_module {
    tp_ctx *ctx;
    tp_linear *layer;
    tp_cross_entropy_desc loss;
    tpi_inner order;
    tp_dtype dtype;
    float *total;
    tpi_records saved, delayed;
} head_module;

typedef struct head_saved {
    tp_linear_saved linear;
    tp_cross_entropy_saved loss;
    tp_tensor logits;
} head_saved;

static int64_t head_features(const void *self)
{
    (void)self;
    return 0;
}

/* Rows of logits begin at multiples of 64 elements, whatever the vocabulary: products and vectors are slow on other
 * rows. */
enum { ROW_ELEMENTS = 64 };

static tp_tensor padded_logits(const head_module *head, const tp_pass *pass)
{
    int64_t cols = tp_linear_local_features(head->layer);
    return tp_tensor_2d(NULL, head->dtype, pass->tokens, (cols + ROW_ELEMENTS - 1) / ROW_ELEMENTS * ROW_ELEMENTS);
}

/* The columns that exist. */
static tp_tensor logits_of(const head_module *head, tp_tensor padded)
{
    return tp_tensor_cols(padded, 0, tp_linear_local_features(head->layer));
}

/* Logits, and what the loss keeps. Memory NULL: counts only. */
static size_t carve(const head_module *head, const tp_pass *pass, void *memory, head_saved *out)
{
    tp_tensor padded = padded_logits(head, pass);
    size_t loss_at = tpi_bytes_aligned(tp_tensor_bytes(padded)), loss_bytes = tp_cross_entropy_saved_bytes(pass);
    if (memory != NULL) {
        padded.data = memory;
        *out = (head_saved){.logits = logits_of(head, padded),
                            .loss = {.memory = (char *)memory + loss_at, .bytes = loss_bytes}};
    }
    return tpi_bytes_sum(loss_at, loss_bytes);
}

static size_t head_saved_bytes(const void *self, const tp_pass *pass)
{
    return carve(self, pass, NULL, NULL);
}

static size_t head_delayed_bytes(const void *self, const tp_pass *pass)
{
    size_t bytes = tp_linear_delayed_bytes(((const head_module *)self)->layer, pass);
    return tpi_bytes_aligned(bytes > 0 ? bytes : 1); /* its address names the record */
}

static tp_status run(tp_ctx *ctx, const head_module *head, const tp_pass *pass, tp_tensor x, head_saved *saved)
{
    tp_tensor logits = padded_logits(head, pass);
    if (saved == NULL) {
        TPI_TRY(tpi_scratch_tensor(ctx, head->dtype, logits.shape[0], logits.shape[1], &logits));
        logits = logits_of(head, logits);
    } else {
        logits = saved->logits;
    }
    TPI_TRY(tp_linear_forward(ctx, head->layer, pass, &(tp_io){.in = x, .out = logits},
                              saved != NULL ? &saved->linear : NULL));
    return tpi_cross_entropy_forward(ctx, &(tpi_cross_entropy_args){.desc = &head->loss,
                                                                    .order = &head->order,
                                                                    .pass = pass,
                                                                    .logits = logits,
                                                                    .total = head->total,
                                                                    .saved = saved != NULL ? &saved->loss : NULL});
}

static tp_status head_forward(tp_ctx *ctx, void *self, const tp_pass *pass, tp_tensor x, tp_tensor y, void *memory)
{
    (void)y;
    head_module *head = self;
    TPI_TRY(tpi_cross_entropy_check_targets(ctx, pass, head->loss.vocabulary)); /* before the logits are changed */
    void *record = NULL;
    if (memory != NULL) {
        TPI_TRY(tpi_record_make(&head->saved, memory, &record));
        carve(head, pass, memory, record);
    }
    head_saved *saved = record;
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = run(ctx, head, pass, x, saved);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

static tp_status head_backward_input(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *memory,
                                     void *delayed_memory)
{
    head_module *head = self;
    void *record, *later;
    TPI_TRY(tpi_record_find(&head->saved, memory, &record));
    TPI_TRY(tpi_record_make(&head->delayed, delayed_memory, &later));
    head_saved *saved = record;
    tp_linear_delayed *delayed = later;
    *delayed = (tp_linear_delayed){.memory = delayed_memory,
                                   .bytes = tp_linear_delayed_bytes(head->layer, pass)};
    TPI_TRY(tp_cross_entropy_backward(ctx, &head->loss, pass, &saved->loss));
    return tp_linear_backward_input(ctx, head->layer, pass, &(tp_io){.in = saved->logits, .out = io->out}, delayed);
}

static tp_status head_backward_weight(tp_ctx *ctx, void *self, const tp_pass *pass, void *memory, void *delayed)
{
    const head_module *head = self;
    void *record, *later;
    TPI_TRY(tpi_record_find(&head->saved, memory, &record));
    TPI_TRY(tpi_record_find(&head->delayed, delayed, &later));
    return tp_linear_backward_weight(ctx, head->layer, pass, &((head_saved *)record)->linear, later);
}

static tp_status head_backward(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *memory)
{
    const head_module *head = self;
    void *record;
    TPI_TRY(tpi_record_find(&head->saved, memory, &record));
    head_saved *saved = record;
    TPI_TRY(tp_cross_entropy_backward(ctx, &head->loss, pass, &saved->loss));
    return tp_linear_backward(ctx, head->layer, pass, &(tp_io){.in = saved->logits, .out = io->out}, &saved->linear);
}

static int head_params(void *self, tp_param **out, int capacity)
{
    return tp_linear_params(((head_module *)self)->layer, out, capacity);
}

static void head_destroy(void *self)
{
    head_module *head = self;
    tp_linear_destroy(head->layer);
    tpi_records_free(&head->saved);
    tpi_records_free(&head->delayed);
    tpi_host_release(head->ctx, head, sizeof *head);
}

static const tp_module_table head_table = {.kind = "head",
                                           .features = head_features,
                                           .saved_bytes = head_saved_bytes,
                                           .delayed_bytes = head_delayed_bytes,
                                           .forward = head_forward,
                                           .backward_input = head_backward_input,
                                           .backward_weight = head_backward_weight,
                                           .backward = head_backward,
                                           .params = head_params,
                                           .destroy = head_destroy};

static tp_status check_head(tp_ctx *ctx, const tp_linear_desc *head, const tp_cross_entropy_desc *loss,
                            const float *total)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_given(ctx, "tp_module_head: head", head));
    TPI_TRY(tpi_cross_entropy_check(ctx, loss));
    if (head->kind != TP_LINEAR_COLUMN)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "head: linear kind is %d, must be TP_LINEAR_COLUMN (%d)",
                          (int)head->kind, (int)TP_LINEAR_COLUMN);
    if (head->out_features != loss->vocabulary)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "head: out_features is %" PRId64 ", vocabulary of the loss is %" PRId64,
                          head->out_features, loss->vocabulary);
    if (total == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "head: total is NULL");
    return TP_OK;
}

tp_status tp_module_head(tp_ctx *ctx, const tp_linear_desc *desc, const tp_cross_entropy_desc *loss, float *total,
                         tp_module *out)
{
    TPI_TRY(tpi_given(ctx, "tp_module_head: out", out));
    *out = (tp_module){0};
    TPI_TRY(check_head(ctx, desc, loss, total));
    head_module *head = tpi_host_allocate(ctx, sizeof *head);
    if (head == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "head module: out of memory");
    *head = (head_module){.ctx = ctx, .loss = *loss, .dtype = desc->dtype, .total = total,
                           .saved = {.ctx = ctx, .bytes = sizeof(head_saved)},
                           .delayed = {.ctx = ctx, .bytes = sizeof(tp_linear_delayed)}};
    tpi_cross_entropy_order(ctx, loss->vocabulary, &head->order);
    tp_status status = tp_linear_create(ctx, desc, &head->layer);
    if (status != TP_OK) {
        tpi_host_release(ctx, head, sizeof *head);
        return status;
    }
    *out = (tp_module){&head_table, head};
    return TP_OK;
}

bool tpi_head_logits(const tp_module *module, const void *saved, tp_tensor *logits)
{
    if (module->table != &head_table)
        return false;
    void *record;
    if (tpi_record_find(&((const head_module *)module->self)->saved, saved, &record) != TP_OK)
        return false;
    *logits = ((const head_saved *)record)->logits;
    return true;
}
