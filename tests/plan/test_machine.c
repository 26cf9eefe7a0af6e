/* Whose times a machine's figures are: the CPU's or a GPU's. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tp/auto.h"
#include "tp/tp.h"

/* A GPU's file says so in its first line: it can't be taken for the CPU's, nor the other way round, and one that was made by hand is checked as any. */
Test(machines, text_says_whose_times_they_are)
{
    char text[8192], part[8192];
    tp_machine machine, back;
    tp_machine_default_of(TP_DEVICE_CUDA, &machine);
    cr_assert_lt(tp_machine_print(&machine, text, sizeof text), sizeof text);
    cr_assert_eq(strncmp(text, "tp-machine 3 cuda\n", 18), 0, "%s", text);
    cr_assert_eq(tp_machine_parse(text, &back), TP_OK, "%s", tp_last_message());
    cr_assert_eq(back.device, TP_DEVICE_CUDA);
    tp_machine_print(&back, part, sizeof part);
    cr_assert_str_eq(part, text);
    cr_assert_eq(back.gemm[TP_DTYPE_F16].points, machine.gemm[TP_DTYPE_F16].points);
    snprintf(part, sizeof part, "tp-machine 3 rocm%s", text + 17);
    cr_assert_eq(tp_machine_parse(part, &back), TP_ERR_FORMAT);
    cr_assert_not_null(strstr(tp_last_message(), "tp-machine 3 cuda"), "%s", tp_last_message());
    tp_machine_default_of(TP_DEVICE_CPU, &machine);
    tp_machine_default(&back);
    tp_machine_print(&machine, text, sizeof text);
    tp_machine_print(&back, part, sizeof part);
    cr_assert_str_eq(part, text);
    cr_assert(machine.device == TP_DEVICE_CPU && back.device == TP_DEVICE_CPU);
}

/* A context goes by times of its own kind of device only. */
Test(machines, of_another_device_is_refused)
{
    tp_machine gpu, cpu;
    tp_ctx *ctx = NULL;
    tp_machine_default_of(TP_DEVICE_CUDA, &gpu);
    tp_machine_default_of(TP_DEVICE_CPU, &cpu);
    tp_ctx_desc desc = {.version = TP_VERSION, .threads = 1, .machine = &gpu};
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_last_message(), "has times of cuda, the context is of cpu"), "%s", tp_last_message());
    desc.machine = &cpu;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK, "%s", tp_last_message());
    tp_ctx_destroy(ctx);
}

/* Lanes that are streams of their own and a quick link: with much to hide, something hides it; with little, nothing is worth its launches. */
Test(machines, a_gpu_that_nobody_measured)
{
    tp_machine machine;
    tp_overlap_choice large, small;
    tp_machine_default_of(TP_DEVICE_CUDA, &machine);
    tp_overlap_shape shape = {.pattern = TP_PATTERN_GATHER_GEMM, .dtype = TP_DTYPE_BF16, .ranks = 8, .rows = 8192, .cols = {3584}, .inner = {8192}};
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &large), TP_OK, "%s", tp_last_message());
    cr_assert_neq(large.algorithm, TP_OVERLAP_NONE, "%s", large.reason);
    shape.rows = 8;
    cr_assert_eq(tp_overlap_choose(&machine, &shape, &small), TP_OK, "%s", tp_last_message());
    cr_assert_eq(small.chunks, 1, "%s %d", tp_overlap_name(small.algorithm), small.chunks);
}
