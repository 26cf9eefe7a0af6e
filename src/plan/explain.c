/* Draws where a plan fails:
 *
 *   plan pull gather-gemm ranks 2 chunks 1: race
 *   step      0      1      2      3
 *   rank 0    E    P 1    G0 0  > G0 1 <   L     <<<
 *   rank 1    E    P 0    G0 1    G0 0     L
 *   rank 0, op 3: gemm reads gathered piece 1 of rank 0, but nothing orders it after rank 0's op 1 (pull)
 *   G0 1 reads gathered[1] writes output[1] */
#include <stdio.h>

#include "plan/text.h"

#define STEPS 12 /* drawn around the op */
#define WIDTH 9

/* An op in a few letters: kind, part, piece, peer. */
static void shorten(const tp_plan_op *op, char text[32])
{
    int length = snprintf(text, 32, "%c", tpi_op_letter(op->kind));
    if (op->kind == TP_OP_GEMM || op->kind == TP_OP_COMPUTE)
        length += snprintf(text + length, 32 - (size_t)length, "%d", op->part % 100);
    if (op->pieces != 0)
        length += snprintf(text + length, 32 - (size_t)length, op->pieces == 1 ? " %d" : " %d+", op->piece % 100000);
    if (op->peer != -1)
        snprintf(text + length, 32 - (size_t)length, "~%d", op->peer % 1000);
}

static void put_cell(tpi_writer *writer, const tp_plan_op *op, bool marked)
{
    char text[32], cell[40];
    shorten(op, text);
    snprintf(cell, sizeof cell, marked ? ">%s<" : " %s", text);
    tpi_put(writer, "%-*s", WIDTH + 1, cell);
}

static int longest(const tp_plan *plan)
{
    int steps = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        if (plan->rank[rank].count > steps)
            steps = plan->rank[rank].count;
    return steps;
}

static void put_grid(tpi_writer *writer, const tp_plan *plan, const tp_proof *proof)
{
    int steps = longest(plan), begin = proof->op - STEPS / 2;
    if (begin > steps - STEPS)
        begin = steps - STEPS;
    if (begin < 0)
        begin = 0;
    int end = begin + STEPS < steps ? begin + STEPS : steps;
    tpi_put(writer, "%-*s", WIDTH, "step");
    for (int step = begin; step < end; step++)
        tpi_put(writer, " %-*d", WIDTH, step);
    tpi_put(writer, "\n");
    for (int rank = 0; rank < plan->ranks; rank++) {
        tpi_put(writer, "rank %-*d", WIDTH - 5, rank);
        for (int step = begin; step < end && step < plan->rank[rank].count; step++)
            put_cell(writer, &plan->rank[rank].op[step], rank == proof->rank && step == proof->op);
        tpi_put(writer, rank == proof->rank ? "  <<<\n" : "\n");
    }
}

size_t tp_plan_explain(const tp_plan *plan, const tp_proof *proof, char *text, size_t bytes)
{
    tpi_writer writer = {text, text != NULL ? bytes : 0, 0};
    if (plan == NULL || proof == NULL)
        return tpi_put_end(&writer);
    tpi_put(&writer, "plan %s %s ranks %d chunks %d: ", tp_overlap_name((tp_overlap)plan->algorithm),
            tp_pattern_name((tp_pattern)plan->pattern), plan->ranks, plan->chunks);
    if (proof->proven) {
        tpi_put(&writer, "proven (%d ops, %d waits, %d edges, at most %d pieces alive)\n", proof->ops, proof->waits,
                proof->edges, proof->peak_pieces);
        return tpi_put_end(&writer);
    }
    tpi_put(&writer, "%s\n", tp_fault_name(proof->fault));
    bool ranks = plan->ranks >= 1 && plan->ranks <= TP_PLAN_MAX_RANKS;
    if (ranks)
        put_grid(&writer, plan, proof);
    if (ranks && proof->rank >= 0 && proof->rank < plan->ranks && proof->op >= 0 &&
        proof->op < plan->rank[proof->rank].count) {
        tpi_put(&writer, "rank %d, op %d: %s\n", proof->rank, proof->op, proof->message);
        tpi_put_op(&writer, proof->rank, &plan->rank[proof->rank].op[proof->op]);
        tpi_put(&writer, "\n");
    } else {
        tpi_put(&writer, "%s\n", proof->message);
    }
    return tpi_put_end(&writer);
}
