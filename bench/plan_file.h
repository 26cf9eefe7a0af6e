/* Plans in their text form, from files. */
#ifndef BENCH_PLAN_FILE_H
#define BENCH_PLAN_FILE_H

#include "command.h"

/* The plan in a file, or, where path is "-", on standard input. Returns a BENCH_ status, with a message; *out is the
 * caller's to destroy. */
int bench_plan_read(bench_call *call, const char *path, tp_plan **out);

#endif
