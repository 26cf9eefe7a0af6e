/* The figures that the choice of an overlap needs, measured while all ranks work: what is alike on every device. */
#include "calibration_worker.h"
#include "parallel.h"

#include <math.h>
#include <stdlib.h>

tp_status bench_calibration_measure(bench_worker *w, tp_status (*fn)(void *arg), double *seconds)
{
    bench_team_figure figure = {.figure = {0}};
    tp_status status = bench_team_measure(&w->all->team, w->ctx, &w->all->plan, fn, w, &figure);
    if (status == TP_OK && w->rank == 0 && !w->all->team.on_gpu) {
        w->all->samples.kept += figure.figure.kept;
        w->all->samples.total += figure.figure.total;
    }
    *seconds = figure.figure.seconds;
    return status;
}

tp_status bench_calibration_more(bench_worker *w, tp_status (*with)(void *arg), tp_status (*without)(void *arg),
                                 double *seconds)
{
    double more[BENCH_CALIBRATION_REPEATS], longer, shorter;
    for (int i = 0; i < w->all->repeats; i++) {
        TPI_TRY(bench_calibration_measure(w, with, &longer));
        TPI_TRY(bench_calibration_measure(w, without, &shorter));
        more[i] = longer - shorter;
    }
    *seconds = fmax(bench_median(more, w->all->repeats), 0);
    return TP_OK;
}

void bench_calibration_point(tp_machine_curve *curve, int i, int64_t rows, double flops)
{
    curve->points = curve->points > i + 1 ? curve->points : i + 1;
    curve->rows[i] = (double)rows;
    curve->flops[i] = fmax(curve->flops[i], flops);
    if (i == 0)
        return;
    /* Fewer rows take no longer. The rate may fall where a small tile is added to a large one, not where there are
     * many. */
    if (rows <= BENCH_CALIBRATION_TILES)
        curve->flops[i] = fmin(curve->flops[i], curve->rows[i] / curve->rows[i - 1] * curve->flops[i - 1]);
    else
        curve->flops[i] = fmax(curve->flops[i], curve->flops[i - 1]);
}

tp_status bench_calibration_run_gather(void *arg)
{
    bench_worker *w = arg;
    tp_range mine = tp_shard_range(w->count, w->ranks, w->rank);
    return tp_all_gather(w->ctx, tp_ctx_world(w->ctx), tp_tensor_1d(w->in, TP_DTYPE_F32, mine.end - mine.begin),
                         tp_tensor_1d(w->out, TP_DTYPE_F32, w->count), NULL);
}

int bench_calibrate(bench_call *call, int ranks, tp_machine *out, bench_figure *samples)
{
    *samples = (bench_figure){.kept = 0};
    bench_calibration *all = calloc(1, sizeof *all);
    if (all == NULL)
        return bench_fail(call, "out of memory");
    bench_team_begin(call, &all->team, ranks);
    all->machine.device = (tp_device)call->options.device;
    all->machine.threads = 1;
    bench_costs_name(call, all->machine.name, sizeof all->machine.name);
    tp_status status = bench_on_gpu(call) ? bench_calibrate_gpu(call, all) : bench_calibrate_cpu(call, all);
    *out = all->machine;
    *samples = all->samples;
    free(all);
    return status == TP_OK ? BENCH_OK : bench_fail(call, "calibration: %s", tp_last_message());
}
