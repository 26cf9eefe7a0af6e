/* One linear layer, its output features cut over two ranks. Using the library is the fifteen lines of `run`, and a line
 * of main. */
#include <stdio.h>
#include <tp/tp.h>

enum { TOKENS = 3, IN = 4, OUT = 6, RANKS = 2 };

static float x[TOKENS][IN] = {{1, 2, 3, 4}, {0, 1, 0, -1}, {2, 2, -2, 5}};
static float w[OUT][IN] = {{0, -2, -4, -6}, {1, -1, -3, -5}, {2, 0, -2, -4},
                           {3, 1, -1, -3},  {4, 2, 0, -2},   {5, 3, 1, -1}};
static float y[RANKS][TOKENS][OUT / RANKS]; /* each rank's outputs */

static tp_status run(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_linear *layer;
    tp_linear_desc desc = {
        .name = "example", .kind = TP_LINEAR_COLUMN, .in_features = IN, .out_features = OUT, .dtype = TP_DTYPE_F32};
    tp_status status = tp_linear_create(ctx, &desc, &layer);
    if (status != TP_OK)
        return status; /* tp_last_message() says why */
    tp_param *weight;
    tp_linear_params(layer, &weight, 1);
    /* takes this rank's rows of the whole matrix */
    status = tp_param_load(ctx, weight, w, TP_DTYPE_F32, (int64_t[]){IN, 1});
    tp_io io = {.in = tp_tensor_2d(x, TP_DTYPE_F32, TOKENS, IN),
                .out = tp_tensor_2d(y[tp_ctx_rank(ctx)], TP_DTYPE_F32, TOKENS, OUT / RANKS)};
    if (status == TP_OK)
        status = tp_linear_forward(ctx, layer, NULL, &io, NULL);
    tp_linear_destroy(layer);
    return status;
}

/* Outputs that differ from plain loops: all numbers are small integers, so sums are exact. */
static int count_wrong(void)
{
    int wrong = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int o = 0; o < OUT; o++) {
            float expected = 0;
            for (int i = 0; i < IN; i++)
                expected += x[t][i] * w[o][i];
            wrong += y[o / (OUT / RANKS)][t][o % (OUT / RANKS)] != expected;
        }
    return wrong;
}

int main(void)
{
    if (tp_run_ranks(&(tp_run_options){.ranks = RANKS}, run, NULL) != TP_OK) {
        fprintf(stderr, "linear: %s\n", tp_last_message());
        return 1;
    }
    int wrong = count_wrong();
    printf("linear: %d x %d outputs on %d ranks, %d wrong\n", TOKENS, OUT, RANKS, wrong);
    return wrong != 0;
}
