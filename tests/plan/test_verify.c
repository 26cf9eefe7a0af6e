/* What verify says about plans that are wrong in ways that can be written down, and what it counts in those that are
 * right. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/overlap.h>

#include "support/data.h"

static tp_plan *parse(const char *text)
{
    tp_plan *plan;
    cr_assert_eq(tp_plan_parse(text, &plan), TP_OK, "%s", tp_last_message());
    return plan;
}

/* Two ranks with all slices of all rows. What rank 0 makes of them comes between. */
#define SLICED_2X2                                                                                                     \
    "plan none row-backward ranks 2 chunks 2\n"                                                                        \
    "0: E writes input[0x2], gradient[0x2], output[0x4]; C 0x4 all-gather reads input[0x2] writes gathered[0x4]; "
#define SLICED_2X2_OTHER                                                                                               \
    "1: E writes input[2x2], gradient[0x2], output[0x4]; C 0x4 all-gather reads input[2x2] writes gathered[0x4]; G0 "  \
    "0x4 reads "                                                                                                       \
    "gathered[0x4] writes output[0x4]; G1 0x4 reads gradient[0x2], gathered[0x4] writes gradient[0x2]; L\n"

static const struct wrong {
    const char *name, *text;
    tp_fault fault;
    int rank, op;
    const char *message; /* part of it */
} wrongs[] = {
    {"own pieces only",
     "plan none gather-gemm ranks 1 chunks 1\n0: E writes input[0], output[0]; G0 0 reads input[0] writes output[0]; L "
     "reads output[0]\n",
     TP_FAULT_NONE, -1, -1, ""},
    {"nothing at all", "plan none gemm ranks 1 chunks 1\n0:\n", TP_FAULT_FIELD, 0, -1, "rank 0 has no enter"},
    {"no leave", "plan none gemm ranks 1 chunks 1\n0: E writes input[0], output[0]\n", TP_FAULT_FIELD, 0, -1,
     "rank 0 has no leave"},
    {"two enters", "plan none gemm ranks 1 chunks 1\n0: E; E; L\n", TP_FAULT_FIELD, 0, 1, "a second one"},
    {"nothing done", "plan none gemm ranks 1 chunks 1\n0: E writes input[0], output[0]; L\n", TP_FAULT_RESULT, 0, -1,
     "output piece 0 of rank 0 is never produced"},
    {"left unfinished", "plan none gemm ranks 1 chunks 1\n0: E writes input[0], output[0]; L reads output[0]\n",
     TP_FAULT_RACE, 0, 1, "leave reads, before anything was written there, output piece 0 of rank 0"},
    {"wrong weights",
     "plan none gemm ranks 1 chunks 1\n0: E writes input[0], output[0]; G1 0 reads input[0] writes output[0]; L\n",
     TP_FAULT_RESULT, 0, 1, "something else than the pattern promises into output piece 0"},
    {"produced twice",
     "plan none gemm ranks 1 chunks 1\n0: E writes input[0], output[0]; G0 0 reads input[0] writes output[0]; G0 0 "
     "reads input[0] writes output[0]; L\n",
     TP_FAULT_RESULT, 0, 2, "produces a second time output piece 0"},
    {"waits for itself", "plan none gemm ranks 1 chunks 1\n0: E after 0; L\n", TP_FAULT_FIELD, 0, 0,
     "not issued before it (0)"},
    {"waits for what comes later", "plan none gemm ranks 1 chunks 1\n0: E after 1; L\n", TP_FAULT_FIELD, 0, 0,
     "not issued before it (1)"},
    {"a pipeline schedule's op", "plan none gemm ranks 1 chunks 1\n0: E; F 0; L\n", TP_FAULT_FIELD, 0, 1,
     "has no place"},
    {"a copy of nothing", "plan none gemm ranks 1 chunks 1\n0: E; Y 0x0 reads input[0x0] writes gathered[0x0]; L\n",
     TP_FAULT_FIELD, 0, 1, "works on nothing"},
    {"piece renamed",
     "plan none gather-gemm ranks 1 chunks 2\n0: E writes input[0x2], output[0x2]; G0 0 reads input[1] writes "
     "output[0]; L\n",
     TP_FAULT_FIELD, 0, 1, "other pieces than the op works on (1)"},
    {"input overwritten",
     "plan none gemm ranks 1 chunks 1\n0: E writes input[0]; Y 0 reads input[0] writes input[0]; L\n", TP_FAULT_FIELD,
     0, 1, "writes what the caller gave"},
    {"GEMM into a peer",
     "plan none gather-gemm ranks 2 chunks 1\n0: E; G0 0 reads input[0] writes 1:output[0]; L\n1: E; L\n",
     TP_FAULT_FIELD, 0, 1, "touches a peer's memory (1)"},
    {"pulled from a third",
     "plan pull gather-gemm ranks 3 chunks 1\n0: E; P 2 ~1 reads 2:input[2] writes gathered[2]; L\n1: E; L\n2: E; L\n",
     TP_FAULT_FIELD, 0, 1, "not its peer's (2)"},
    {"send without receive",
     "plan ring gather-gemm ranks 2 chunks 1\n0: E writes input[0]; S 0 ~1 @comm after 0 reads input[0]; L\n1: E; L\n",
     TP_FAULT_UNMET, 0, 1, "rank 1 does not receive it"},
    {"receive without send",
     "plan ring gather-gemm ranks 2 chunks 1\n0: E; V 1 ~1 @copy writes gathered[1]; L\n1: E; L\n", TP_FAULT_UNMET, 0,
     1, "rank 1 does not send that often"},
    {"other piece received",
     "plan ring gather-gemm ranks 2 chunks 2\n0: E writes input[0x2]; S 0 ~1 @comm after 0 reads input[0]; L\n1: E; V "
     "1 ~0 @copy writes gathered[1]; L\n",
     TP_FAULT_UNMET, 1, 1, "recv of piece 1 meets rank 0's send of piece 0 (its op 1)"},
    {"collective alone",
     "plan none gather-gemm ranks 2 chunks 1\n0: E writes input[0]; C 0x2 all-gather reads input[0] writes "
     "gathered[0x2]; L\n1: E writes input[1]; L\n",
     TP_FAULT_UNMET, 0, 1, "rank 1 does not take part"},
    {"collectives crossed",
     "plan pipeline gather-gemm ranks 2 chunks 2\n"
     "0: E writes input[0x2]; C 0x2/2 all-gather reads input[0] writes gathered[0x2/2]; C 1x2/2 all-gather reads "
     "input[1] writes gathered[1x2/2]; L\n"
     "1: E writes input[2x2]; C 1x2/2 all-gather reads input[3] writes gathered[1x2/2]; C 0x2/2 all-gather reads "
     "input[2] writes gathered[0x2/2]; L\n",
     TP_FAULT_UNMET, 1, 1, "meets another one"},
    {"rendezvous in a circle",
     "plan ring gather-gemm ranks 2 chunks 1\n"
     "0: E writes input[0], output[0x2]; S 0 ~1 @comm after 0 reads input[0]; V 1 ~1 @comm writes gathered[1]; L\n"
     "1: E writes input[1], output[0x2]; S 1 ~0 @comm after 0 reads input[1]; V 0 ~0 @comm writes gathered[0]; L\n",
     TP_FAULT_DEADLOCK, 1, 1, "deadlock"},
    {"waits across ranks in a circle",
     "plan pull gather-gemm ranks 2 chunks 1\n0: E after 1.1; L\n1: E; L after 0.0, 0.1\n", TP_FAULT_DEADLOCK, -1, -1,
     "deadlock"},
    {"compute blocks what it waits for",
     "plan pull gather-gemm ranks 2 chunks 1\n"
     "0: E writes input[0], output[0x2]; G0 0 after 1.1 reads input[0] writes output[0]; P 1 ~1 @copy after 1.0 reads "
     "1:input[1] writes gathered[1]; L\n"
     "1: E writes input[1], output[0x2]; P 0 ~0 @copy after 0.2, 0.0 reads 0:input[0] writes gathered[0]; L\n",
     TP_FAULT_DEADLOCK, -1, -1, "deadlock"},
    {"read too early",
     "plan ring gather-gemm ranks 2 chunks 1\n"
     "0: E writes input[0], output[0x2]; S 0 ~1 @comm after 0 reads input[0]; V 1 ~1 @copy writes gathered[1]; G0 1 "
     "reads gathered[1] writes output[1]; L\n"
     "1: E writes input[1], output[0x2]; S 1 ~0 @comm after 0 reads input[1]; V 0 ~0 @copy writes gathered[0]; L\n",
     TP_FAULT_RACE, 0, 3, "gathered piece 1 of rank 0"},
    {"peer's input before it is there",
     "plan direct gather-gemm ranks 2 chunks 1\n0: E writes input[0], output[0x2]; G0 1 reads 1:input[1] writes "
     "output[1]; L\n"
     "1: E writes input[1], output[0x2]; L after 0.1\n",
     TP_FAULT_RACE, 0, 1, "does not wait for the enter of input piece 1 of rank 1"},
    {"peer leaves too early",
     "plan direct gather-gemm ranks 2 chunks 1\n0: E writes input[0], output[0x2]; G0 1 after 1.0 reads 1:input[1] "
     "writes output[1]; L\n"
     "1: E writes input[1], output[0x2]; L\n",
     TP_FAULT_RACE, 0, 1, "is not waited for by the leave of input piece 1 of rank 1"},
    {"message overtakes",
     "plan ring gather-gemm ranks 2 chunks 2\n"
     "0: E writes input[0x2]; S 0 ~1 @comm after 0 reads input[0]; S 1 ~1 @copy after 0 reads input[1]; L\n"
     "1: E; V 0 ~0 @comm writes gathered[0]; V 1 ~0 @comm writes gathered[1]; L\n",
     TP_FAULT_RACE, 0, 2, "can overtake op 1"},
    {"a sum without a rank",
     "plan direct gemm-scatter ranks 2 chunks 1\n"
     "0: E writes input[0x2], output[0]; G0 0x2 reads input[0x2] writes partial[0x2]; R 0 reads partial[0] writes "
     "output[0]; L\n1: E; L\n",
     TP_FAULT_RESULT, 0, 2, "adds 1 partial sums, there are 2 ranks"},
    {"a sum in another order",
     "plan direct gemm-scatter ranks 2 chunks 1\n"
     "0: E writes input[0x2], output[0]; G0 0x2 reads input[0x2] writes partial[0x2]; R 0 after 1.1 reads "
     "1:partial[0], partial[0] writes output[0]; L\n"
     "1: E writes input[0x2], output[1]; G0 0x2 reads input[0x2] writes partial[0x2]; L after 0.2\n",
     TP_FAULT_RESULT, 0, 2, "partial sum 0 is rank 1's"},
    {"a chain out of order",
     "plan none gather-weight ranks 1 chunks 2\n"
     "0: E writes input[0x2], second[0x2], gradient[0]; G0 1 reads gradient[0], input[1], second[1] writes "
     "gradient[0]; L\n",
     TP_FAULT_RESULT, 0, 1, "accumulates out of order"},
    {"a chain without its end",
     "plan none gather-weight ranks 1 chunks 2\n"
     "0: E writes input[0x2], second[0x2], gradient[0]; G0 0 reads gradient[0], input[0], second[0] writes "
     "gradient[0]; L\n",
     TP_FAULT_RESULT, 0, -1, "the gradient of rank 0 has 1 of 2 pieces"},
    {"operands exchanged",
     "plan none gather-weight ranks 1 chunks 1\n"
     "0: E writes input[0], second[0], gradient[0]; G0 0 reads gradient[0], second[0], input[0] writes gradient[0]; "
     "L\n",
     TP_FAULT_RESULT, 0, 1, "accumulates something else"},
    {"a core that saw half",
     "plan none chain-core ranks 1 chunks 2\n"
     "0: E writes input[0x2], output[0x2]; G0 0x2 reads input[0x2] writes middle[0x2]; K0 0 reads middle[0] writes "
     "core[0]; L\n",
     TP_FAULT_RESULT, 0, 2, "core piece 0 of rank 0"},
    {"input of another owner", "plan none gather-gemm ranks 2 chunks 1\n0: E writes input[0x2]; L\n1: E; L\n",
     TP_FAULT_RESULT, 0, 0, "hands over what the pattern does not have: input piece 1"},
    {"used after leave",
     "plan none gemm ranks 1 chunks 1\n0: E writes input[0], output[0]; L writes input[0], output[0]; G0 0 reads "
     "input[0] writes output[0]\n",
     TP_FAULT_RACE, 0, 2, "reads, after leave, input piece 0"},
    {"written after leave",
     "plan pull gather-gemm ranks 2 chunks 2\n"
     "0: E writes input[0x2], output[0x4]; P 2 ~1 @copy after 1.0 reads 1:input[2] writes gathered[2]; P 3 ~1 @copy "
     "reads "
     "1:input[3] writes gathered[3]; G0 0x2 reads input[0x2] writes output[0x2]; G0 2 after 1 reads gathered[2] writes "
     "output[2]; L after 1.2 reads output[0x3] writes input[0x2], output[0x4]; G0 3 after 2 reads gathered[3] writes "
     "output[3]\n"
     "1: E writes input[2x2], output[0x4]; P 0 ~0 @copy after 0.0 reads 0:input[0] writes gathered[0]; P 1 ~0 @copy "
     "reads "
     "0:input[1] writes gathered[1]; G0 2x2 reads input[2x2] writes output[2x2]; G0 0 after 1 reads gathered[0] writes "
     "output[0]; G0 1 after 2 reads gathered[1] writes output[1]; L after 0.2 reads output[0x4] writes input[2x2], "
     "output[0x4]\n",
     TP_FAULT_RACE, 0, 6, "writes, after leave, output piece 3 of rank 0"},
    {"sums over slices of all owners in one",
     SLICED_2X2 "G0 0x4 reads gathered[0x4] writes output[0x4]; G1 0x4 reads gradient[0x2], gathered[0x4] writes "
                "gradient[0x2]; L\n" SLICED_2X2_OTHER,
     TP_FAULT_NONE, -1, -1, ""},
    {"owners out of order",
     SLICED_2X2 "G1 2x2 reads gradient[0x2], gathered[2x2] writes gradient[0x2]; L\n" SLICED_2X2_OTHER,
     TP_FAULT_RESULT, 0, 2, "accumulates out of order"},
    {"a sum that goes on from a peer's",
     SLICED_2X2 "G0 0 reads gathered[0] writes output[0]; G0 1 reads gathered[1], 1:output[0] writes output[1]; L\n"
     SLICED_2X2_OTHER,
     TP_FAULT_FIELD, 0, 3, "must go on from the slice before"},
    {"a sum that begins in the middle",
     SLICED_2X2 "G0 1 reads gathered[1] writes output[1]; L\n" SLICED_2X2_OTHER, TP_FAULT_FIELD, 0, 2,
     "the sum before if there is one"},
    {"a sum that goes on from another owner's",
     SLICED_2X2 "G0 0x2 reads gathered[0x2] writes output[0x2]; G0 3 reads gathered[3], output[1] writes output[3]; L\n"
     SLICED_2X2_OTHER,
     TP_FAULT_FIELD, 0, 3, "must go on from the slice before"},
    {"a gradient of other slices",
     SLICED_2X2 "G1 0x2/2 reads gradient[1], gathered[0x2/2] writes gradient[1]; L\n" SLICED_2X2_OTHER,
     TP_FAULT_FIELD, 0, 2, "other slices"},
    {"a slice without its gradient",
     SLICED_2X2 "G0 0x4 reads gathered[0x4] writes output[0x4]; G1 0x2/2 reads gradient[0], gathered[0x2/2] writes "
                "gradient[0]; L\n" SLICED_2X2_OTHER,
     TP_FAULT_RESULT, 0, -1, "the gradient of rank 0 has 0 of 2 pieces"},
    {"a collective of no part",
     "plan none gather-gemm ranks 1 chunks 1\n0: E writes input[0], output[0]; C4 0 all-gather reads input[0] writes "
     "gathered[0]; G0 0 reads gathered[0] writes output[0]; L reads output[0]\n",
     TP_FAULT_FIELD, 0, 1, "no such part (4)"},
    {"rows that nobody gathered",
     "plan none gather-gemm ranks 1 chunks 1\n0: E writes input[0], gathered[0], output[0]; G0 0 reads gathered[0] "
     "writes output[0]; L reads output[0]\n",
     TP_FAULT_FIELD, 0, 0, "hands over what no caller has"},
    {"a slot of no inbox",
     "plan none gather-gemm ranks 2 chunks 1\n0: E writes input[0], output[0x2]; G0 0 reads input#1[0] writes "
     "output[0]; L\n1: E; L\n",
     TP_FAULT_FIELD, 0, 1, "no such slot (1)"},
    {"a gather of a peer's rows",
     "plan none gather-gemm ranks 2 chunks 1\n0: E writes input[0], output[0x2]; C 0x2 all-gather reads input[0x2] "
     "writes gathered[0x2]; L\n1: E; L\n",
     TP_FAULT_FIELD, 0, 1, "pieces that others own"},
    {"pieces of another step",
     "plan none gather-gemm ranks 2 chunks 2\n0: E writes input[0x2], output[0x4]; G0 0x2/2 reads input[0x2] writes "
     "output[0x2/2]; L\n1: E; L\n",
     TP_FAULT_FIELD, 0, 1, "other pieces than the op works on"},
    {"pieces that leave takes twice",
     "plan none gemm ranks 1 chunks 1\n0: E writes input[0], output[0]; G0 0 reads input[0] writes output[0]; L reads "
     "output[0] writes input[0], output[0], input[0]\n",
     TP_FAULT_NONE, -1, -1, ""},
};

Test(verify, faults)
{
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        const struct wrong *wrong = &wrongs[i];
        tp_plan *plan = parse(wrong->text);
        tp_proof proof;
        cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
        cr_expect_eq(proof.proven, wrong->fault == TP_FAULT_NONE, "%s", wrong->name);
        cr_expect_eq(proof.fault, wrong->fault, "%s: %s: %s", wrong->name, tp_fault_name(proof.fault), proof.message);
        cr_expect(strstr(proof.message, wrong->message) != NULL, "%s: %s", wrong->name, proof.message);
        if (wrong->fault != TP_FAULT_DEADLOCK)
            cr_expect(proof.rank == wrong->rank && proof.op == wrong->op, "%s: rank %d, op %d: %s", wrong->name,
                      proof.rank, proof.op, proof.message);
        else
            cr_expect(proof.rank >= 0 && proof.op >= 0, "%s", wrong->name);
        tp_plan_destroy(plan);
    }
}

/* Numbers that no text can bring in: they come from memory. */
Test(verify, fields_out_of_range)
{
    tp_plan *plan;
    cr_assert_eq(tp_plan_create(&(tp_plan_desc){TP_OVERLAP_PULL, TP_PATTERN_GEMM_REDUCE, 2, 2, false}, &plan), TP_OK);
    static const int values[] = {-1, INT32_MIN, INT32_MAX, 64, 1 << 20};
    int tried = 0;
    for (int i = 0; i < plan->rank[0].count; i++) {
        tp_plan_op *op = &plan->rank[0].op[i];
        int *fields[32] = {(int *)&op->kind, (int *)&op->lane,       &op->part, &op->piece, &op->pieces, &op->step,
                           &op->peer,        (int *)&op->collective, &op->waits};
        int count = 9;
        if (op->reads > 0) {
            tp_region *region = &op->read[0];
            int *more[] = {(int *)&region->buffer, &region->rank,   &region->slot,
                           &region->piece,         &region->pieces, &region->step};
            for (size_t m = 0; m < 6; m++)
                fields[count++] = more[m];
        }
        if (op->waits > 0) {
            fields[count++] = &op->wait[0].rank;
            fields[count++] = &op->wait[0].op;
        }
        for (int f = 0; f < count; f++)
            for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
                int kept = *fields[f];
                if (kept == values[v] || (fields[f] == &op->waits && values[v] > 0))
                    continue;
                *fields[f] = values[v];
                tp_proof proof;
                cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
                bool unused = (fields[f] == &op->step && op->pieces <= 1) ||
                              (op->pieces == 0 && fields[f] == &op->piece) ||
                              (op->reads > 0 && fields[f] == &op->read[0].step && op->read[0].pieces <= 1);
                cr_assert(unused || !proof.proven, "op %d, field %d, value %d", i, f, values[v]);
                char text[4096];
                tp_plan_explain(plan, &proof, text, sizeof text);
                tp_plan_print(plan, text, sizeof text);
                *fields[f] = kept;
                tried++;
            }
    }
    cr_log_info("%d fields out of range", tried);
    tp_plan_destroy(plan);
}

Test(verify, header)
{
    tp_plan *plan;
    cr_assert_eq(tp_plan_create(&(tp_plan_desc){TP_OVERLAP_NONE, TP_PATTERN_GEMM, 2, 1, false}, &plan), TP_OK);
    int *fields[] = {&plan->algorithm, &plan->pattern, &plan->ranks, &plan->chunks, &plan->rank[1].count};
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        int kept = *fields[f];
        *fields[f] = -1;
        tp_proof proof;
        cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
        cr_assert(!proof.proven && proof.fault == TP_FAULT_FIELD && proof.rank == -1 && proof.op == -1);
        if (f != 4) {
            *fields[f] = 1000;
            cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
            cr_assert(!proof.proven && proof.fault == TP_FAULT_FIELD);
        }
        *fields[f] = kept;
    }
    tp_proof proof;
    cr_assert_eq(tp_plan_verify(NULL, &proof), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_plan_verify(plan, NULL), TP_ERR_ARGUMENT);
    tp_plan_destroy(plan);
}

static int peak(tp_overlap algorithm, tp_pattern pattern, int ranks, int chunks)
{
    tp_plan *plan;
    tp_proof proof;
    cr_assert_eq(tp_plan_create(&(tp_plan_desc){algorithm, pattern, ranks, chunks, false}, &plan), TP_OK);
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
    cr_assert(proof.proven);
    tp_plan_destroy(plan);
    return proof.peak_pieces;
}

Test(verify, peak_pieces)
{
    cr_expect_eq(peak(TP_OVERLAP_NONE, TP_PATTERN_GEMM, 4, 2), 0);
    cr_expect_eq(peak(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 4, 2), 8);      /* all of GATHERED */
    cr_expect_eq(peak(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 4, 2), 6);      /* peers' pieces */
    cr_expect_eq(peak(TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, 4, 2), 0);    /* no copies */
    cr_expect_eq(peak(TP_OVERLAP_DIRECT, TP_PATTERN_GEMM_SCATTER, 4, 2), 8);   /* all of PARTIAL */
    cr_expect_eq(peak(TP_OVERLAP_RING, TP_PATTERN_GEMM_SCATTER, 4, 2), 8 + 6); /* and INBOX of each peer */
    /* One piece after the other: the second is written when the first is not needed any more. */
    tp_plan *plan =
        parse("plan none chain ranks 1 chunks 2\n"
              "0: E writes input[0x2], output[0x2]; G0 0 reads input[0] writes middle[0]; K0 0 reads middle[0] writes "
              "core[0]; "
              "G1 0 reads core[0] writes partial[0]; R 0 reads partial[0] writes output[0]; "
              "G0 1 reads input[1] writes middle[1]; K0 1 reads middle[1] writes core[1]; "
              "G1 1 reads core[1] writes partial[1]; R 1 reads partial[1] writes output[1]; L reads output[0x2]\n");
    tp_proof proof;
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
    cr_assert(proof.proven, "%s", proof.message);
    cr_expect_eq(proof.peak_pieces, 1);
    tp_plan_destroy(plan);
    /* What nobody reads is needed while it is written. */
    plan = parse("plan none gather-gemm ranks 1 chunks 2\n"
                 "0: E writes input[0x2], output[0x2]; Y 0 reads input[0] writes gathered[0]; "
                 "Y 1 reads input[1] writes gathered[1]; G0 0x2 reads input[0x2] writes output[0x2]; "
                 "L reads output[0x2]\n");
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
    cr_assert(proof.proven, "%s", proof.message);
    cr_expect_eq(proof.peak_pieces, 1);
    tp_plan_destroy(plan);
    /* Likewise beside the compute lane: each copy waits for the GEMM that reads the one before, or does not. */
    static const char *const waits[] = {"after 3 ", ""};
    for (int i = 0; i < 2; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "plan pull gather-gemm ranks 2 chunks 2\n"
                 "0: E writes input[0x2], output[0x4]; P 2 ~1 @copy after 1.0 reads 1:input[2] writes gathered[2]; G0 "
                 "0x2 reads "
                 "input[0x2] writes output[0x2]; G0 2 after 1 reads gathered[2] writes output[2]; P 3 ~1 @copy %sreads "
                 "1:input[3] writes gathered[3]; G0 3 after 4 reads gathered[3] writes output[3]; L after 1.4 reads "
                 "output[0x4]\n"
                 "1: E writes input[2x2], output[0x4]; P 0 ~0 @copy after 0.0 reads 0:input[0] writes gathered[0]; G0 "
                 "2x2 reads "
                 "input[2x2] writes output[2x2]; G0 0 after 1 reads gathered[0] writes output[0]; P 1 ~0 @copy after 3 "
                 "reads "
                 "0:input[1] writes gathered[1]; G0 1 after 4 reads gathered[1] writes output[1]; L after 0.4 reads "
                 "output[0x4]\n",
                 waits[i]);
        plan = parse(text);
        cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
        cr_assert(proof.proven, "%s", proof.message);
        cr_expect_eq(proof.peak_pieces, i + 1, "%d pieces", proof.peak_pieces);
        tp_plan_destroy(plan);
    }
}

Test(verify, explain)
{
    tp_plan *plan = parse("plan direct gather-gemm ranks 2 chunks 1\n"
                          "0: E writes input[0], output[0x2]; G0 1 after 1.0 reads 1:input[1] writes output[1]; L\n"
                          "1: E writes input[1], output[0x2]; L\n");
    tp_proof proof;
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
    char text[2048];
    size_t length = tp_plan_explain(plan, &proof, text, sizeof text);
    cr_assert_eq(length, strlen(text));
    cr_expect_str_eq(text, "plan direct gather-gemm ranks 2 chunks 1: race\n"
                           "step      0         1         2        \n"
                           "rank 0    E        >G0 1<     L          <<<\n"
                           "rank 1    E         L        \n"
                           "rank 0, op 1: gemm is not waited for by the leave of input piece 1 of rank 1\n"
                           "G0 1 after 1.0 reads 1:input[1] writes output[1]\n");
    tp_plan_destroy(plan);
    cr_assert_eq(tp_plan_create(&(tp_plan_desc){TP_OVERLAP_RING, TP_PATTERN_CHAIN, 4, 4, false}, &plan), TP_OK);
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
    tp_plan_explain(plan, &proof, text, sizeof text);
    cr_expect(strstr(text, "plan ring chain ranks 4 chunks 4: proven (") == text, "%s", text);
    /* Of a long plan only the part around the op is drawn. */
    plan->rank[2].op[40].part++;
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
    cr_assert(!proof.proven);
    tp_plan_explain(plan, &proof, text, sizeof text);
    cr_expect(strstr(text, "<<<") != NULL && strstr(text, proof.message) != NULL && strlen(text) < 1500, "%s", text);
    tp_plan_destroy(plan);
}
