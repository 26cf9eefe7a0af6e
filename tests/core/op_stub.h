/* A context whose ops go nowhere: tests of what ops.c lets through. */
#ifndef TPT_OP_STUB_H
#define TPT_OP_STUB_H

#include <criterion/criterion.h>
#include <string.h>

#include "core/context.h"
#include "core/stream.h"

/* A context whose backend only counts what reaches it. */
typedef struct stub {
    tp_ctx *ctx;
    tpi_backend backend;
} stub;

static int dispatched;

#define STUB(name, type)                                                                                               \
    static inline tp_status stub_##name(tpi_stream *stream, const type *args)                                          \
    {                                                                                                                  \
        (void)stream, (void)args;                                                                                      \
        dispatched++;                                                                                                  \
        return TP_OK;                                                                                                  \
    }

STUB(gemm, tpi_gemm_args)
STUB(reduce, tpi_reduce_args)
STUB(map, tpi_map_args)
STUB(attention, tpi_attention_args)
STUB(attention_grad, tpi_attention_grad_args)
STUB(norm, tpi_norm_args)
STUB(norm_grad, tpi_norm_grad_args)
STUB(xent, tpi_xent_args)
STUB(square_sum, tpi_square_sum_args)
STUB(optimizer, tpi_optimizer_args)
STUB(activation, tpi_activation_args)
STUB(rope, tpi_rope_args)
STUB(embedding, tpi_embedding_args)
STUB(embedding_grad, tpi_embedding_grad_args)
STUB(random_fill, tpi_random_fill_args)

static inline tpi_stream *open_stub(stub *self)
{
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &self->ctx), TP_OK);
    self->backend = *self->ctx->backend;
    self->backend.gemm = stub_gemm;
    self->backend.reduce = stub_reduce;
    self->backend.map = stub_map;
    self->backend.attention = stub_attention;
    self->backend.attention_grad = stub_attention_grad;
    self->backend.norm = stub_norm;
    self->backend.norm_grad = stub_norm_grad;
    self->backend.xent = stub_xent;
    self->backend.square_sum = stub_square_sum;
    self->backend.optimizer = stub_optimizer;
    self->backend.activation = stub_activation;
    self->backend.rope = stub_rope;
    self->backend.embedding = stub_embedding;
    self->backend.embedding_grad = stub_embedding_grad;
    self->backend.random_fill = stub_random_fill;
    self->ctx->backend = &self->backend;
    return self->ctx->compute;
}

static inline void close_stub(stub *self)
{
    tp_ctx_destroy(self->ctx);
}

static float data[4096];

/* Refused with this status, nothing dispatched, the context whole, and the message has both texts. */
static inline void check_refused(stub *self, tp_status got, tp_status want, const char *first, const char *second)
{
    cr_assert_eq(got, want, "%s %s: %s", first, second, tp_last_message());
    cr_assert_not_null(strstr(tp_last_message(), first), "%s", tp_last_message());
    cr_assert_not_null(strstr(tp_last_message(), second), "%s", tp_last_message());
    cr_assert_str_eq(tp_ctx_message(self->ctx), tp_last_message());
    cr_assert_eq(tp_ctx_failure(self->ctx), TP_OK);
    cr_assert_eq(dispatched, 0);
}

#endif
