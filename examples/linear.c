/* One linear layer, its output features cut over two ranks; checked against plain loops. */
#include <stdio.h>
#include <tp/tp.h>

enum { TOKENS = 3, IN = 4, OUT = 6 };

static float weight(int o, int i)
{
    return (float)(o - 2 * i);
}

static tp_status run(tp_ctx *ctx, void *wrong)
{
    float x[TOKENS][IN] = {{1, 2, 3, 4}, {0, 1, 0, -1}, {2, 2, -2, 5}}, y[TOKENS][OUT / 2], w[OUT][IN];
    for (int o = 0; o < OUT; o++)
        for (int i = 0; i < IN; i++)
            w[o][i] = weight(o, i);

    tp_linear *layer;
    tp_linear_desc desc = {.name = "example", .kind = TP_LINEAR_COLUMN, .in_features = IN, .out_features = OUT, .dtype = TP_DTYPE_F32};
    tp_status status = tp_linear_create(ctx, &desc, &layer);
    if (status != TP_OK)
        return status;
    tp_param *param;
    tp_linear_params(layer, &param, 1);
    status = tp_param_load(ctx, param, w, TP_DTYPE_F32, (int64_t[]){IN, 1}); /* cuts this rank's rows out of the whole matrix */
    tp_io io = {.in = tp_tensor_2d(x, TP_DTYPE_F32, TOKENS, IN), .out = tp_tensor_2d(y, TP_DTYPE_F32, TOKENS, OUT / 2)};
    if (status == TP_OK)
        status = tp_linear_forward(ctx, layer, NULL, &io, NULL);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    tp_linear_destroy(layer);

    for (int t = 0; status == TP_OK && t < TOKENS; t++)
        for (int o = 0; o < OUT / 2; o++) {
            float expected = 0;
            for (int i = 0; i < IN; i++)
                expected += x[t][i] * weight(tp_ctx_rank(ctx) * OUT / 2 + o, i);
            ((int *)wrong)[tp_ctx_rank(ctx)] += y[t][o] != expected;
        }
    return status;
}

int main(void)
{
    int wrong[2] = {0, 0};
    if (tp_run_ranks(&(tp_run_options){.ranks = 2}, run, wrong) != TP_OK) {
        fprintf(stderr, "linear: %s\n", tp_last_message());
        return 1;
    }
    printf("linear: %d x %d outputs on 2 ranks, %d wrong\n", TOKENS, OUT, wrong[0] + wrong[1]);
    return wrong[0] + wrong[1] != 0;
}
