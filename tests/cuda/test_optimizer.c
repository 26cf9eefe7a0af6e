/* AdamW and SGD: the CPU's bits over several steps. */
#include "cuda/cuda_support.h"

typedef struct optimizer_case {
    tpi_optimizer_args args;
    bool master, moment;
    float scale;
    int shifted; /* the array that is not aligned: 1 master, 2 value, 3 m, 4 v, 5 grad; 0: none */
} optimizer_case;

typedef struct optimizer_memory {
    tpt_pair master, value, grad, m, v, scale;
} optimizer_memory;

static float *shifted_by(const optimizer_case *test, int array, char *memory, tp_dtype dtype)
{
    return (float *)(void *)(memory + (test->shifted == array ? tp_dtype_size(dtype) : 0));
}

static void check_optimizer(tpt_sides *sides, const optimizer_case *test)
{
    tpi_optimizer_args args = test->args;
    optimizer_memory memory;
    int64_t count = args.elements + 1;
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
            args.master = test->master ? shifted_by(test, 1, memory.master.at[side], TP_DTYPE_F32) : NULL;
            args.value = shifted_by(test, 2, memory.value.at[side], args.value_dtype);
            args.m = test->moment ? shifted_by(test, 3, memory.m.at[side], TP_DTYPE_F32) : NULL;
            args.v = shifted_by(test, 4, memory.v.at[side], TP_DTYPE_F32);
            args.grad = shifted_by(test, 5, memory.grad.at[side], TP_DTYPE_F32);
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

/* One array alone is not aligned. */
Test(cuda_optimizer, one_array_that_is_not_aligned)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int shifted = 1; shifted <= 5; shifted++)
        for (int d = 0; d < 3; d++) {
            optimizer_case test = {.args = {.kind = TPI_OPTIMIZER_ADAMW,
                                            .elements = 72,
                                            .value_dtype = tpt_floats[d],
                                            .lr = 0.01f,
                                            .beta1 = 0.9f,
                                            .beta2 = 0.95f,
                                            .epsilon = 1e-8f},
                                   .master = true,
                                   .moment = true,
                                   .scale = 1,
                                   .shifted = shifted};

            check_optimizer(&sides, &test);
        }
    tpt_sides_close(&sides);
}

/* Elements that never had a gradient: 0 / 0 with an epsilon of 0. */
Test(cuda_optimizer, zero_gradient_and_zero_epsilon_stay_put)
{
    enum { COUNT = 19 };
    const float one = 1;
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++) {
        float *zeros = tpt_array(TP_DTYPE_F32, COUNT);
        tpt_pair master = tpt_pair_normal(&sides, TP_DTYPE_F32, COUNT, 1, 1),
                 value = tpt_pair_array(&sides, zeros, tpt_floats[d], COUNT),
                 grad = tpt_pair_array(&sides, zeros, TP_DTYPE_F32, COUNT),
                 m = tpt_pair_array(&sides, zeros, TP_DTYPE_F32, COUNT),
                 v = tpt_pair_array(&sides, zeros, TP_DTYPE_F32, COUNT), scale = tpt_pair_of(&sides, &one, sizeof one);
        float *before = tpt_pair_get(&sides, &master, TPT_GPU), *after;

        for (int step = 1; step <= 2; step++) {
            tpi_optimizer_args args = {.kind = TPI_OPTIMIZER_ADAMW,
                                       .elements = COUNT,
                                       .master = (float *)(void *)master.at[TPT_GPU],
                                       .value = value.at[TPT_GPU],
                                       .value_dtype = tpt_floats[d],
                                       .grad = (float *)(void *)grad.at[TPT_GPU],
                                       .m = (float *)(void *)m.at[TPT_GPU],
                                       .v = (float *)(void *)v.at[TPT_GPU],
                                       .grad_scale = (float *)(void *)scale.at[TPT_GPU],
                                       .lr = 1,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .step = step};

            TPT_ISSUE(&sides, TPT_GPU, tpi_optimizer, &args);
        }
        after = tpt_pair_get(&sides, &master, TPT_GPU);
        cr_assert(tpt_same_bits("master", after, before, TP_DTYPE_F32, COUNT));
        free(zeros);
        free(before);
        free(after);
        tpt_sides_reset(&sides);
    }
    tpt_sides_close(&sides);
}

/* Parameters of all sizes, dtypes and alignments, each a part of one array: more than one launch can take. */
enum { LIST = 450, MOST = 41 };

static void fill_list(tpi_optimizer_args *list, const optimizer_memory *memory, int side, int step)
{
    for (int i = 0; i < LIST; i++) {
        int64_t first = i * MOST + i % 3;
        tp_dtype dtype = tpt_floats[i % 3];
        bool master = i % 4 != 0;

        list[i] = (tpi_optimizer_args){.kind = i < LIST - 50 ? TPI_OPTIMIZER_ADAMW : TPI_OPTIMIZER_SGD,
                                       .elements = i * 7 % (MOST - 2),
                                       .master = master ? (float *)(void *)memory->master.at[side] + first : NULL,
                                       .value = memory->value.at[side] + (size_t)first * sizeof(float),
                                       .value_dtype = master ? dtype : TP_DTYPE_F32,
                                       .grad = (float *)(void *)memory->grad.at[side] + first,
                                       .m = (float *)(void *)memory->m.at[side] + first,
                                       .v = (float *)(void *)memory->v.at[side] + first,
                                       .grad_scale = (float *)(void *)memory->scale.at[side] + (i < 90),
                                       .lr = i < 20 ? 0.02f : 0.01f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .epsilon = 1e-8f,
                                       .decay = i % 5 == 0 ? 0.1f : 0,
                                       .momentum = 0.9f,
                                       .step = i < 150 ? step : step + 5};
    }
}

Test(cuda_optimizer, a_list_has_the_bits_of_single_parameters)
{
    enum { COUNT = LIST * MOST };
    static tpi_optimizer_args list[LIST];
    tpt_sides sides;
    optimizer_memory memory;
    float scale[2] = {0.37f, 0.5f}, *zeros = tpt_array(TP_DTYPE_F32, COUNT);

    tpt_sides_open(&sides);
    memory.master = tpt_pair_normal(&sides, TP_DTYPE_F32, COUNT, 1, 0.1);
    memory.value = tpt_pair_normal(&sides, TP_DTYPE_F32, COUNT, 2, 0.1);
    memory.m = tpt_pair_array(&sides, zeros, TP_DTYPE_F32, COUNT);
    memory.v = tpt_pair_array(&sides, zeros, TP_DTYPE_F32, COUNT);
    memory.scale = tpt_pair_of(&sides, scale, sizeof scale);
    free(zeros);
    for (int step = 1; step <= 2; step++) {
        memory.grad = tpt_pair_normal(&sides, TP_DTYPE_F32, COUNT, (uint64_t)step + 10, 2);
        fill_list(list, &memory, TPT_CPU, step);
        for (int i = 0; i < LIST; i++)
            TPT_ISSUE(&sides, TPT_CPU, tpi_optimizer, &list[i]);
        fill_list(list, &memory, TPT_GPU, step);
        cr_assert_eq(tpi_optimizer_list(sides.ctx[TPT_GPU]->compute, list, LIST), TP_OK, "%s", tp_last_message());
        memset(list, 0, sizeof list); /* it was copied */
    }
    tpt_pair_same(&sides, "master", &memory.master, TP_DTYPE_F32);
    tpt_pair_same(&sides, "value", &memory.value, TP_DTYPE_F32);
    tpt_pair_same(&sides, "m", &memory.m, TP_DTYPE_F32);
    tpt_pair_same(&sides, "v", &memory.v, TP_DTYPE_F32);
    tpt_sides_close(&sides);
}

Test(cuda_optimizer, a_list_with_a_wrong_member_changes_nothing)
{
    tpt_sides sides;
    float one = 1;

    tpt_sides_open(&sides);
    for (int side = 0; side < TPT_SIDES; side++) {
        tpt_pair weight = tpt_pair_normal(&sides, TP_DTYPE_F32, 5, 1, 1), scale = tpt_pair_of(&sides, &one, sizeof one);
        tpi_optimizer_args list[2] = {{.kind = TPI_OPTIMIZER_SGD,
                                       .elements = 5,
                                       .value = weight.at[side],
                                       .value_dtype = TP_DTYPE_F32,
                                       .grad = (float *)(void *)weight.at[side],
                                       .grad_scale = (float *)(void *)scale.at[side],
                                       .lr = 1}};
        list[1] = list[0];
        list[1].elements = -1;
        cr_assert_eq(tpi_optimizer_list(sides.ctx[side]->compute, list, 2), TP_ERR_SHAPE);
        tpt_pair_same(&sides, "weight", &weight, TP_DTYPE_F32);
    }
    tpt_sides_close(&sides);
}
