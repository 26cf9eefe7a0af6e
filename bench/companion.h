/* Files that tp_bench needs while it runs, but isn't linked with: what peers are. */
#ifndef BENCH_COMPANION_H
#define BENCH_COMPANION_H

#include <stdbool.h>
#include <stddef.h>

/* Finds it beside the program, or where it was installed to, as seen from the program; else it is `built`, where the
 * build has it (NULL: nowhere). */
bool bench_companion(const char *name, const char *built, char *path, size_t bytes);

#endif
