/* Issuing attention: what is refused, and how its work is counted. */
#include <math.h>

#include "op_stub.h"

static tpi_attention_args good_attention(void)
{
    static const int32_t kv_of_head[4] = {0, 0, 1, 1};
    return (tpi_attention_args){
        .rows = 6,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 8,
        .dtype = TP_DTYPE_F32,
        .q = data,
        .k = data,
        .v = data,
        .out = data,
        .q_stride = 32,
        .k_stride = 16,
        .v_stride = 16,
        .out_stride = 32,
        .kv_of_head = kv_of_head,
        .scale = 1,
    };
}

Test(ops_attention, attention_checks)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    tpi_attention_args args = good_attention();
    args.sequences = 4;
    check_refused(&self, tpi_attention(stream, &args), TP_ERR_SHAPE, "6 rows", "4 sequences");
    const int64_t short_offsets[] = {0, 2, 5}, mixed_offsets[] = {0, 4, 3, 6};
    args.sequences = 2;
    args.offsets = short_offsets;
    check_refused(&self, tpi_attention(stream, &args), TP_ERR_SHAPE, "offsets[2] is 5", "6 rows");
    args.sequences = 3;
    args.offsets = mixed_offsets;
    check_refused(&self, tpi_attention(stream, &args), TP_ERR_SHAPE, "offsets[2] is 3", "4");
    args = good_attention();
    args.kv_heads = 1;
    check_refused(&self, tpi_attention(stream, &args), TP_ERR_ARGUMENT, "kv_of_head[head] is 1", "0");
    args = good_attention();
    args.k_stride = 15;
    check_refused(&self, tpi_attention(stream, &args), TP_ERR_SHAPE, "stride of k is 15", "16");
    args = good_attention();
    args.scale = NAN;
    check_refused(&self, tpi_attention(stream, &args), TP_ERR_ARGUMENT, "scale", "nan");
    args = good_attention();
    args.dropout = 0.5f;
    args.total_heads = 4;
    args.first_head = 2;
    check_refused(&self, tpi_attention(stream, &args), TP_ERR_ARGUMENT, "total_heads is 4", "6");
    args.total_heads = 6;
    cr_assert_eq(tpi_attention(stream, &args), TP_OK, "%s", tp_last_message());
    cr_assert_eq(dispatched, 1);
    close_stub(&self);
}

Test(ops_attention, attention_grad_checks)
{
    stub self;
    tpi_stream *stream = open_stub(&self);
    static const int32_t slots[4] = {0, 1, 0, 1};
    tpi_attention_grad_args args = {.forward = good_attention(),
                                    .dout = data,
                                    .dout_stride = 32,
                                    .dq = data,
                                    .dq_stride = 32,
                                    .slots = 2,
                                    .slot_of_head = slots,
                                    .dk = data,
                                    .dv = data};
    check_refused(&self, tpi_attention_grad(stream, &args), TP_ERR_ARGUMENT, "lse", "NULL");
    args.forward.lse = data;
    check_refused(&self, tpi_attention_grad(stream, &args), TP_ERR_ARGUMENT, "slot_of_head[head] is 0", "1");
    close_stub(&self);
}

/* Pairs by counting them. */
static double count_pairs(int64_t length, bool causal, int64_t window)
{
    double pairs = 0;
    for (int64_t i = 0; i < length; i++) {
        for (int64_t j = 0; j < length; j++) {
            bool seen = (!causal || j <= i) && (window == 0 || (i - j < window && j - i < window));
            pairs += seen ? 1 : 0;
        }
    }
    return pairs;
}

Test(ops_attention, attention_cost_counts_visible_pairs)
{
    const int64_t offsets[] = {0, 5, 5, 18, 20};
    for (int causal = 0; causal < 2; causal++) {
        for (int64_t window = 0; window < 16; window++) {
            tpi_attention_args args = good_attention();
            args.rows = 20;
            args.causal = causal;
            args.window = window;
            args.offsets = offsets;
            args.sequences = 4;
            double pairs = 0;
            for (int i = 0; i < 4; i++)
                pairs += count_pairs(offsets[i + 1] - offsets[i], causal, window);
            cr_assert_eq(tpi_attention_cost(&args).flops, 4.0 * pairs * 4 * 8);
            args.offsets = NULL;
            cr_assert_eq(tpi_attention_cost(&args).flops, 4.0 * 4 * count_pairs(5, causal, window) * 4 * 8);
        }
    }
}
