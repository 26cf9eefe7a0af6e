/* What the files of the automatic choice share. */
#ifndef TPI_AUTO_H
#define TPI_AUTO_H

#include <tp/auto.h>

/* Figures that none can be are refused with TP_ERR_ARGUMENT, which names the field of `what`. */
tp_status tpi_machine_check(const char *what, const tp_machine *machine);

/* TP_ERR_ARGUMENT names the field. */
tp_status tpi_overlap_check_shape(const tp_overlap_shape *shape);

/* Two layers' input and weight gradients together. */
bool tpi_overlap_is_chain_backward(tp_pattern pattern);

/* Candidates in the order of preference at equal times; the chunk counts of one algorithm follow each other, rising. */
int tpi_overlap_list_candidates(const tp_machine *machine, const tp_overlap_shape *shape,
                                tp_plan_desc desc[TP_OVERLAP_CANDIDATES]);

/* What lanes without a core of their own take from each op that computes, and how late their first ones begin, by
 * rank. */
typedef struct tpi_lane_charges {
    double *seconds[TP_PLAN_MAX_RANKS];
    double total; /* taken from rank 0's compute */
    double *memory; /* all of them, the caller's to free; NULL: nothing is taken */
} tpi_lane_charges;
tp_status tpi_lanes_charge(const tp_machine *machine, const tp_plan *plan, const tp_plan_costs *costs,
                           tpi_lane_charges *out);

/* Some of its ops are not on the compute lane. */
bool tpi_plan_uses_lanes(const tp_plan *plan);

/* Some pieces would have no rows at all. */
bool tpi_overlap_too_fine(const tp_overlap_shape *shape, const tp_plan_desc *desc);

/* Simulates one candidate, adds it to the choice, and chooses it if it is better than what is chosen. */
tp_status tpi_overlap_try(const tp_machine *machine, const tp_overlap_shape *shape, const tp_plan_desc *desc,
                          const tp_plan *plan, tp_overlap_choice *choice);

/* TP_ERR_ARGUMENT names what is NULL, or the machine's or shape's field. */
tp_status tpi_overlap_check_arguments(const char *function, const tp_machine *machine, const tp_overlap_shape *shape,
                                      const void *out);

/* Called after each plan that is made and each simulation, so that whoever waits for a table can be told that it is
 * being made. What it returns ends the work. */
typedef struct tpi_progress {
    tp_status (*call)(void *arg);
    void *arg;
} tpi_progress;

/* tp_overlap_table_fill of good arguments. progress: NULL is none. */
tp_status tpi_overlap_table_fill(const tp_machine *machine, const tp_overlap_shape *shape, const tpi_progress *progress,
                                 tp_overlap_table *out);

#endif
