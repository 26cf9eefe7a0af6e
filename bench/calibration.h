/* Measuring a machine for the choice of an overlap. */
#ifndef BENCH_CALIBRATION_H
#define BENCH_CALIBRATION_H

#include "command.h"

/* Features of the layer whose products are measured. */
enum { BENCH_CALIBRATION_OUT = 768, BENCH_CALIBRATION_IN = 768 };

/* Figures of one of `ranks` ranks, at least 2, at work with one thread each. No link. On failure call->message says why. */
int bench_calibrate(bench_call *call, int ranks, tp_machine *out);

#endif
