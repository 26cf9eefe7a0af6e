/* The program that the tests of this folder run. */
#ifndef TPT_BENCH_PROGRAM_H
#define TPT_BENCH_PROGRAM_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <tp/auto.h>

#include "support/program.h"

static inline int run(const char *arguments)
{
    return tpt_program_run(TPT_BENCH_PROGRAM, arguments);
}

/* A machine's figures that nobody measured, for --machine: calibrating takes half a minute. */
static inline void write_machine(tp_device device, const char *path)
{
    char text[8192];
    tp_machine machine;
    tp_machine_default_of(device, &machine);
    size_t bytes = tp_machine_print(&machine, text, sizeof text);
    FILE *file = fopen(path, "wb");
    cr_assert(file != NULL && bytes < sizeof text && fwrite(text, 1, bytes, file) == bytes && fclose(file) == 0);
}

#define expect(arguments, status, first, second) tpt_program_expect(TPT_BENCH_PROGRAM, arguments, status, first, second)

#endif
