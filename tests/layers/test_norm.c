/* Norm layers: double precision, finite differences, the same bits on every layout (O01: gains are summed, not
 * averaged). */
#include <criterion/criterion.h>

#include "../support/data.h"
#include "../support/layer_tables.h"
#include "../support/reference.h"
#include "../support/tolerance.h"

static tpt_case norm_case(const tp_norm_desc *desc, int64_t tokens)
{
    return (tpt_case){.name = desc->name,
                      .table = &tpt_norm_table,
                      .desc = desc,
                      .dtype = desc->dtype,
                      .in = desc->features,
                      .out = desc->features,
                      .pass = {.tokens = tokens},
                      .seed = 21};
}

static void layer_reference(const tpt_case *c, const double *x, double *const *param, double *y)
{
    tpt_ref_norm(false, x, c->pass.tokens, c->in, param[0], param[1], 1e-5, y);
}

static void rms_reference(const tpt_case *c, const double *x, double *const *param, double *y)
{
    tpt_ref_norm(true, x, c->pass.tokens, c->in, param[0], NULL, 1e-5, y);
}

static void check(tp_norm_kind kind, tp_dtype dtype, int tp, bool sequence_parallel)
{
    tp_norm_desc desc = {.name = kind == TP_NORM_RMS ? "rms" : "layer", .kind = kind, .features = 19, .dtype = dtype};
    tpt_case c = norm_case(&desc, 11);
    tpt_result result;
    tpt_case_run(&c, &(tpt_layout){.tp = tp, .threads = 1, .sequence_parallel = sequence_parallel}, &result);
    tpt_result_check(&c, &result, kind == TP_NORM_RMS ? rms_reference : layer_reference, 2);
    tpt_result_free(&result);
}

Test(norm, agrees_with_double_precision)
{
    static const int ranks[] = {1, 2, 3, 5, 7, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
        for (int sequence_parallel = 0; sequence_parallel < 2; sequence_parallel++) {
            check(TP_NORM_LAYER, TP_DTYPE_F32, ranks[i], sequence_parallel);
            check(TP_NORM_RMS, TP_DTYPE_F32, ranks[i], sequence_parallel);
        }
    check(TP_NORM_LAYER, TP_DTYPE_BF16, 4, true);
    check(TP_NORM_RMS, TP_DTYPE_F16, 4, true);
}

Test(norm, has_the_same_bits_on_every_layout, .timeout = 120)
{
    static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16};
    for (int kind = 0; kind < 2; kind++)
        for (int d = 0; d < 2; d++) {
            tp_norm_desc desc = {
                .name = kind ? "rms" : "layer", .kind = (tp_norm_kind)kind, .features = 83, .dtype = dtypes[d]};
            tpt_case c = norm_case(&desc, 45);
            c.microbatches = 2;
            tpt_same_on_all_layouts(&c);
            c.pass.tokens = 5; /* fewer tokens than ranks */
            tpt_same_on_all_layouts(&c);
        }
}

/* Gradients of several microbatches: the sum of each one's, in every parameter (O12). */
Test(norm, gradients_add_up_over_microbatches)
{
    tp_norm_desc desc = {.name = "layer", .features = 19, .dtype = TP_DTYPE_F32};
    tpt_case c = norm_case(&desc, 11);
    tpt_result one, three;
    tpt_case_run(&c, &(tpt_layout){.tp = 1, .threads = 1}, &one);
    c.microbatches = 3;
    tpt_case_run(&c, &(tpt_layout){.tp = 2, .threads = 1, .sequence_parallel = true}, &three);
    for (int p = 0; p < one.params; p++) {
        double want[32];
        for (int64_t i = 0; i < one.elements[p]; i++)
            want[i] = 3.0 * one.grad[p][i];
        cr_assert(tpt_close_norm(one.name[p], three.grad[p], TP_DTYPE_F32, want, one.elements[p],
                                 tpt_tolerance(TP_DTYPE_F32, 33, 1)));
    }
    tpt_result_free(&one);
    tpt_result_free(&three);
}
