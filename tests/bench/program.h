/* The program that the tests of this folder run. */
#ifndef TPT_BENCH_PROGRAM_H
#define TPT_BENCH_PROGRAM_H

#include "machine_file.h"
#include "support/program.h"

static inline int run(const char *arguments)
{
    return tpt_program_run(TPT_BENCH_PROGRAM, arguments);
}

#define expect(arguments, status, first, second) tpt_program_expect(TPT_BENCH_PROGRAM, arguments, status, first, second)

#endif
