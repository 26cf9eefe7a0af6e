/* What one op of a plan moves and takes: read by the simulator and by the traffic counts. */
#ifndef TPI_PRICE_H
#define TPI_PRICE_H

#include <tp/simulate.h>

/* Costs that are finite and not negative. */
tp_status tpi_price_check_costs(const char *function, const tp_plan *plan, const tp_plan_costs *costs);

/* A plan whose peers, regions and lanes exist, so that it can be walked. Says nothing about whether it is right. */
tp_status tpi_price_check_plan(const tp_plan *plan);

/* Of a plan that takes for ever: TP_ERR_ARGUMENT names a buffer and a rate that do, and both numbers; TP_OK if only
 * sums do. */
tp_status tpi_price_find_endless(const tp_plan *plan, const tp_plan_costs *costs);

/* Bytes of a region; pieces of one buffer are of one size. */
double tpi_price_bytes(const tp_plan *plan, const tp_plan_costs *costs, const tp_region *region);

bool tpi_price_is_transfer(tp_op_kind kind);

/* Computes of an op that needs nothing from peers' memory: GEMM, COMPUTE, REDUCE, COPY; else 0. */
double tpi_price_compute(const tp_plan *plan, const tp_plan_costs *costs, const tp_plan_op *op);

/* A rank's GEMMs and computes if each part of them were one call. */
double tpi_price_uncut(const tp_plan *plan, const tp_plan_costs *costs, int rank);

/* A rank's part of a collective. */
typedef struct tpi_collective_price {
    double sent, received; /* bytes */
    int steps;             /* latencies */
    double copied, added;  /* bytes that its memory moves */
} tpi_collective_price;
tpi_collective_price tpi_price_collective(const tp_plan *plan, const tp_plan_costs *costs, const tp_plan_op *op);

/* bytes / rate, 0 where the rate is 0. */
double tpi_price_seconds(double bytes, double rate);

#endif
