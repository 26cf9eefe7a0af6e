/* Measuring a machine for the choice of an overlap. */
#ifndef BENCH_CALIBRATION_H
#define BENCH_CALIBRATION_H

#include "command.h"
#include "measure.h"

/* Features of the layer whose products are measured. */
enum { BENCH_CALIBRATION_OUT = 768, BENCH_CALIBRATION_IN = 768, BENCH_CALIBRATION_GPU_FEATURES = 4096,
      BENCH_CALIBRATION_SIMULATED_FEATURES = 24 };
/* Up to so many rows a curve follows the tiles that they come in. */
enum { BENCH_CALIBRATION_TILES = 12 };

/* Figures of one of `ranks` ranks, at least 2, at work with one thread each, or on the GPUs that the options say. No
 * link. samples: kept and taken, of all figures together; on GPUs none is dropped, and they are not counted. On failure
 * call->message says why. Of a simulated GPU figures say nothing. */
int bench_calibrate(bench_call *call, int ranks, tp_machine *out, bench_figure *samples);

#endif
