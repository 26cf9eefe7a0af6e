#include "cuda/layer_check.h"

#include <criterion/criterion.h>
#include <stdio.h>

#include "cuda/gpus.h"

tpt_layout tpt_gpus_layout(tpt_layout layout)
{
    layout.device = TP_DEVICE_CUDA;
    layout.plugin = TPT_CUDA_PLUGIN;
    layout.threads = 1;
    return layout;
}

static void check_layouts(const tpt_case *c, const tpt_result *one, unsigned number)
{
    static const tpt_layout layouts[] = {
        {.tp = 2, .devices = 1},
        {.tp = 2, .devices = 2, .sequence_parallel = true, .split_backward = true},
        {.tp = 4, .devices = 4, .sequence_parallel = true},
        {.tp = 4, .devices = 2, .split_backward = true},
    };
    for (unsigned i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        tpt_layout layout = tpt_gpus_layout(layouts[i]);
        tpt_result other;
        char name[128];
        layout.sequence_parallel = layout.sequence_parallel && !c->sees_all_tokens;
        snprintf(name, sizeof name, "tp %d, sequence parallelism %s, %d devices", layout.tp,
                 layout.sequence_parallel ? "on" : "off", layout.devices);
        tpt_gpus_turn(number + i);
        tpt_case_run(c, &layout, &other);
        tpt_gpus_clean(name);
        cr_assert(tpt_result_same(c, name, one, &other), "%s: %s differs from one rank", c->name, name);
        tpt_result_free(&other);
    }
}

void tpt_gpus_check_layer(const tpt_case *c, int depth, bool same_bits, unsigned number)
{
    tpt_result cpu, gpu, fast;
    tpt_layout layout = tpt_gpus_layout((tpt_layout){.tp = 1});
    tpt_case_run(c, &(tpt_layout){.tp = 1, .threads = 1}, &cpu);
    tpt_gpus_turn(number + 2);
    tpt_case_run(c, &layout, &gpu);
    tpt_gpus_clean(c->name);
    if (same_bits)
        cr_assert(tpt_result_same(c, "one GPU", &cpu, &gpu), "%s: the GPU differs from the CPU", c->name);
    else
        cr_assert(tpt_result_near(c, &gpu, &cpu, depth), "%s: the GPU differs from the CPU", c->name);
    check_layouts(c, &gpu, number);
    layout.sum_order = TP_SUM_FAST;
    layout.tp = layout.devices = number % 2 == 0 ? 1 : 2;
    layout.sequence_parallel = number % 4 == 1 && !c->sees_all_tokens;
    tpt_gpus_turn(number);
    tpt_case_run(c, &layout, &fast);
    tpt_gpus_clean("fast sums");
    cr_assert(tpt_result_near(c, &fast, &cpu, depth), "%s: fast sums differ from the CPU", c->name);
    tpt_result_free(&cpu), tpt_result_free(&gpu), tpt_result_free(&fast);
}
