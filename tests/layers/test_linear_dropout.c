/* The gradients of a row-parallel layer with dropout, in double precision, under the mask that its forward pass
 * shows. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <tp/tp.h>

#include "../support/data.h"
#include "../support/layer_tables.h"
#include "../support/layouts.h"
#include "../support/tolerance.h"

enum { TOKENS = 13, IN = 21, OUT = 19 };
static const double PROBABILITY = 0.25;

/* dy * mask / (1 - p). Without a residual an output is 0 only where it was dropped: its bias is not 0. */
static void mask_gradient(const tpt_case *c, const tpt_result *result, double *dy)
{
    void *given = tpt_case_gradient(c);
    int dropped = 0;
    for (int i = 0; i < TOKENS * OUT; i++) {
        bool kept = tpt_get(result->y, c->dtype, i) != 0;
        dy[i] = kept ? tpt_get(given, c->dtype, i) / (1 - PROBABILITY) : 0;
        dropped += !kept;
    }
    free(given);
    cr_assert(dropped > TOKENS * OUT / 8 && dropped < TOKENS * OUT / 2, "%d of %d elements are dropped", dropped,
              TOKENS * OUT);
}

static void check_array(const tpt_case *c, const char *what, const void *got, tp_dtype dtype, const double *want,
                        int64_t count)
{
    cr_assert(tpt_close_norm(what, got, dtype, want, count, tpt_tolerance_chain(c->dtype, IN, 2, 1.0)), "%s", what);
}

static void check_gradients(const tpt_case *c, const tpt_result *result)
{
    double dy[TOKENS * OUT], dx[TOKENS * IN] = {0}, weight[OUT * IN] = {0}, bias[OUT] = {0};
    void *x = tpt_case_input(c);
    mask_gradient(c, result, dy);
    for (int t = 0; t < TOKENS; t++)
        for (int o = 0; o < OUT; o++) {
            double gradient = dy[t * OUT + o];
            bias[o] += gradient;
            for (int i = 0; i < IN; i++) {
                dx[t * IN + i] += gradient * result->value[0][o * IN + i];
                weight[o * IN + i] += gradient * tpt_get(x, c->dtype, t * IN + i);
            }
        }
    check_array(c, "dx", result->dx, c->dtype, dx, TOKENS * IN);
    check_array(c, "weight gradient", result->grad[0], TP_DTYPE_F32, weight, OUT * IN);
    check_array(c, "bias gradient", result->grad[1], TP_DTYPE_F32, bias, OUT);
    free(x);
}

static void check_layout(tp_dtype dtype, const tpt_layout *layout)
{
    tp_linear_desc desc = {.name = "row",
                           .kind = TP_LINEAR_ROW,
                           .in_features = IN,
                           .out_features = OUT,
                           .dtype = dtype,
                           .bias = true,
                           .dropout = (float)PROBABILITY,
                           .site = 0x304};
    tpt_case c = {.name = "row",
                  .table = &tpt_linear_table,
                  .desc = &desc,
                  .cut = TPT_CUT_INPUT,
                  .dtype = dtype,
                  .in = IN,
                  .out = OUT,
                  .pass = {.tokens = TOKENS, .step = 3, .first_token = 100},
                  .seed = 17};
    tpt_result result;
    tpt_case_run(&c, layout, &result);
    check_gradients(&c, &result);
    tpt_result_free(&result);
}

Test(linear_dropout, gradients_are_under_the_mask_of_the_forward_pass)
{
    for (int tp = 1; tp <= 3; tp++)
        for (int parallel = 0; parallel < 2; parallel++)
            for (int split = 0; split < 2; split++) {
                tpt_layout layout = {
                    .tp = tp, .threads = 1, .sequence_parallel = parallel != 0, .split_backward = split != 0};
                check_layout(TP_DTYPE_F32, &layout);
                check_layout(TP_DTYPE_BF16, &layout);
            }
}
