/* Matrix products by oneDNN 2, for tp_bench gemm --peer onednn. */
#include "onednn.h"

#include <oneapi/dnnl/dnnl.h>

#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

tp_peer_open tp_peer_open_product EXPORT;
tp_peer_run tp_peer_run_product EXPORT;
tp_peer_close tp_peer_close_product EXPORT;
tp_peer_name tp_peer_name_library EXPORT;

typedef struct peer {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attributes;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, plain, c;
} peer;

void tp_peer_name_library(char text[64])
{
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, 64, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}

void tp_peer_close_product(void *memory)
{
    peer *self = memory;
    if (self == NULL)
        return;
    dnnl_memory_t memories[] = {self->a, self->b, self->plain, self->c};
    for (int i = 0; i < 4; i++)
        if (memories[i] != NULL)
            dnnl_memory_destroy(memories[i]);
    if (self->primitive != NULL)
        dnnl_primitive_destroy(self->primitive);
    if (self->description != NULL)
        dnnl_primitive_desc_destroy(self->description);
    if (self->attributes != NULL)
        dnnl_primitive_attr_destroy(self->attributes);
    if (self->stream != NULL)
        dnnl_stream_destroy(self->stream);
    if (self->engine != NULL)
        dnnl_engine_destroy(self->engine);
    free(self);
}

static dnnl_status_t describe(dnnl_memory_desc_t *out, int64_t rows, int64_t cols, dnnl_data_type_t type,
                              const int64_t strides[2])
{
    const dnnl_dims_t dims = {rows, cols}, steps = {strides[0], strides[1]};
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, steps);
}

#define CHECK(expression)                        \
    do {                                         \
        dnnl_status_t check_status = (expression); \
        if (check_status != dnnl_success)        \
            return check_status;                 \
    } while (0)

static dnnl_status_t make_attributes(peer *self, int accumulate)
{
    dnnl_post_ops_t after = NULL;
    CHECK(dnnl_primitive_attr_create(&self->attributes));
    if (!accumulate)
        return dnnl_success;
    CHECK(dnnl_post_ops_create(&after));
    dnnl_status_t status = dnnl_post_ops_append_sum(after, 1.0f);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(self->attributes, after);
    dnnl_post_ops_destroy(after);
    return status;
}

/* B in the layout that the primitive wants. */
static dnnl_status_t lay_out(peer *self, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to, const void *data)
{
    void *memory = (void *)(uintptr_t)data;
    if (dnnl_memory_desc_equal(from, to))
        return dnnl_memory_create(&self->b, from, self->engine, memory);
    dnnl_primitive_desc_t description;
    dnnl_primitive_t reorder;
    CHECK(dnnl_memory_create(&self->plain, from, self->engine, memory));
    CHECK(dnnl_memory_create(&self->b, to, self->engine, DNNL_MEMORY_ALLOCATE));
    CHECK(dnnl_reorder_primitive_desc_create(&description, from, self->engine, to, self->engine, NULL));
    CHECK(dnnl_primitive_create(&reorder, description));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, self->plain}, {DNNL_ARG_TO, self->b}};
    CHECK(dnnl_primitive_execute(reorder, self->stream, 2, arguments));
    CHECK(dnnl_stream_wait(self->stream));
    dnnl_primitive_destroy(reorder);
    return dnnl_primitive_desc_destroy(description);
}

static dnnl_status_t make(peer *self, const tp_peer_product *product)
{
    const dnnl_data_type_t type = product->bf16 ? dnnl_bf16 : dnnl_f32, c_type = product->c_f32 ? dnnl_f32 : type;
    const dnnl_dims_t b_dims = {product->inner, product->cols};
    const int64_t c_strides[2] = {product->cols, 1};
    dnnl_memory_desc_t a, b, wanted, c;
    dnnl_matmul_desc_t operation;
    CHECK(dnnl_engine_create(&self->engine, dnnl_cpu, 0));
    CHECK(dnnl_stream_create(&self->stream, self->engine, dnnl_stream_default_flags));
    CHECK(describe(&a, product->rows, product->inner, type, product->a_strides));
    CHECK(describe(&b, product->inner, product->cols, type, product->b_strides));
    CHECK(describe(&c, product->rows, product->cols, c_type, c_strides));
    wanted = b;
    if (product->packed)
        CHECK(dnnl_memory_desc_init_by_tag(&wanted, 2, b_dims, type, dnnl_format_tag_any));
    CHECK(make_attributes(self, product->accumulate));
    CHECK(dnnl_matmul_desc_init(&operation, &a, &wanted, NULL, &c));
    CHECK(dnnl_primitive_desc_create(&self->description, &operation, self->attributes, self->engine, NULL));
    CHECK(dnnl_primitive_create(&self->primitive, self->description));
    CHECK(dnnl_memory_create(&self->a, &a, self->engine, (void *)(uintptr_t)product->a));
    CHECK(dnnl_memory_create(&self->c, &c, self->engine, product->c));
    return lay_out(self, &b, dnnl_primitive_desc_query_md(self->description, dnnl_query_weights_md, 0), product->b);
}

void *tp_peer_open_product(const tp_peer_product *product, char message[200])
{
    peer *self = calloc(1, sizeof *self);
    dnnl_status_t status = self != NULL ? make(self, product) : dnnl_out_of_memory;
    if (status == dnnl_success)
        return self;
    snprintf(message, 200, "oneDNN: status %d", (int)status);
    tp_peer_close_product(self);
    return NULL;
}

int tp_peer_run_product(void *memory)
{
    peer *self = memory;
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, self->a}, {DNNL_ARG_WEIGHTS, self->b}, {DNNL_ARG_DST, self->c}};
    dnnl_status_t status = dnnl_primitive_execute(self->primitive, self->stream, 3, arguments);
    return status == dnnl_success && dnnl_stream_wait(self->stream) == dnnl_success ? 0 : 1;
}
