/* AdamW and SGD: the CPU's bits over several steps. */
#include "cuda/cuda_support.h"

typedef struct optimizer_case {
    tpi_optimizer_args args;
    bool master, moment;
    float scale;
} optimizer_case;

typedef struct optimizer_memory {
    tpt_pair master, value, grad, m, v, scale;
} optimizer_memory;

static void check_optimizer(tpt_sides *sides, const optimizer_case *test)
{
    tpi_optimizer_args args = test->args;
    optimizer_memory memory;
    int64_t count = args.elements;
    float *zeros = tpt_array(TP_DTYPE_F32, count);

    memory.master = tpt_pair_normal(sides, TP_DTYPE_F32, count, 1, 0.1);
    memory.value = test->master ? tpt_pair_array(sides, NULL, args.value_dtype, count) : memory.master;
    memory.m = tpt_pair_array(sides, zeros, TP_DTYPE_F32, count);
    memory.v = tpt_pair_array(sides, zeros, TP_DTYPE_F32, count);
    memory.scale = tpt_pair_of(sides, &test->scale, sizeof test->scale);
    free(zeros);
    for (int step = 1; step <= 3; step++) {
        memory.grad = tpt_pair_normal(sides, TP_DTYPE_F32, count, (uint64_t)step + 10, 2);
        args.step = step;
        for (int side = 0; side < TPT_SIDES; side++) {
            args.master = (float *)(void *)(test->master ? memory.master.at[side] : NULL);
            args.value = memory.value.at[side];
            args.m = (float *)(void *)(test->moment ? memory.m.at[side] : NULL);
            args.v = (float *)(void *)memory.v.at[side];
            args.grad = (float *)(void *)memory.grad.at[side];
            args.grad_scale = (float *)(void *)memory.scale.at[side];
            TPT_ISSUE(sides, side, tpi_optimizer, &args);
        }
    }
    tpt_pair_same(sides, "master", &memory.master, TP_DTYPE_F32);
    tpt_pair_same(sides, "value", &memory.value, args.value_dtype);
    tpt_pair_same(sides, "m", &memory.m, TP_DTYPE_F32);
    tpt_pair_same(sides, "v", &memory.v, TP_DTYPE_F32);
    tpt_sides_reset(sides);
}

Test(cuda_optimizer, all)
{
    static const int64_t sizes[] = {0, 1, 5, 64, 1027};
    static const float scales[] = {1, 0.37f, 0, INFINITY, NAN};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int kind = 0; kind < 3; kind++)
            for (int d = 0; d < 4; d++) {
                optimizer_case test = {.args = {.kind = kind == 2 ? TPI_OPTIMIZER_ADAMW : TPI_OPTIMIZER_SGD,
                                                .elements = sizes[s],
                                                .value_dtype = tpt_floats[d % 3],
                                                .lr = 0.01f,
                                                .beta1 = 0.9f,
                                                .beta2 = 0.95f,
                                                .epsilon = d == 1 ? 0 : 1e-8f,
                                                .decay = 0.1f,
                                                .momentum = kind ? 0.9f : 0},
                                       .master = d<3, .moment = kind> 0,
                                       .scale = scales[(s + (size_t)d) % 5]};

                check_optimizer(&sides, &test);
            }
    tpt_sides_close(&sides);
}
