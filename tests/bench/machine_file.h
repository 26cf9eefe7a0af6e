/* A machine's figures that nobody measured, for --machine: calibrating takes half a minute. */
#ifndef TPT_BENCH_MACHINE_FILE_H
#define TPT_BENCH_MACHINE_FILE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <tp/auto.h>

static inline void write_machine(tp_device device, const char *path)
{
    char figures[8192];
    tp_machine machine;
    tp_machine_default_of(device, &machine);
    size_t bytes = tp_machine_print(&machine, figures, sizeof figures);
    FILE *file = fopen(path, "wb");
    cr_assert(file != NULL && bytes < sizeof figures && fwrite(figures, 1, bytes, file) == bytes && fclose(file) == 0);
}

#endif
