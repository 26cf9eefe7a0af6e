/* Output files: looked at before anything is measured, so that no measurement is lost, and never harmed by the look. */
#ifndef BENCH_OUTPUT_H
#define BENCH_OUTPUT_H

#include "options.h"

/* Where calibrate writes: --out, or a name that says whose times they are. */
const char *bench_machine_path(const bench_options *options);

/* Whether `path` can be written: a regular file or a character device that may be written (it is not opened), or a name
   that can be made (it is made, exclusively, and taken away again). All else is refused; message names the option and
   the path. */
bool bench_output_good(const char *option, const char *path, char message[BENCH_MESSAGE]);

/* Which of the options takes standard output ("-"), where nothing else is printed then; NULL: none. */
const char *bench_output_taken(const bench_options *options);

/* All output options of a command (a BENCH_ bit): each path as above, no two of them the same file, none of them what
   is read, a plot's suffix and its gnuplot. "-" is standard output to those that can go there, which one thing takes
   alone. */
bool bench_outputs_good(const bench_options *options, unsigned command, char message[BENCH_MESSAGE]);

#endif
