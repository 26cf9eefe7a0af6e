/* The text form of plans: golden files, round trip, hostile texts. TPT_UPDATE_GOLDEN=1 writes the golden files anew. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/overlap.h>

#include "support/data.h"

static tp_plan *create(tp_overlap algorithm, tp_pattern pattern, int ranks, int chunks)
{
    tp_plan *plan;
    cr_assert_eq(tp_plan_create(&(tp_plan_desc){algorithm, pattern, ranks, chunks, false}, &plan), TP_OK);
    return plan;
}

static char *print(const tp_plan *plan)
{
    size_t length = tp_plan_print(plan, NULL, 0);
    char *text = tpt_allocate(length + 1);
    cr_assert_eq(tp_plan_print(plan, text, length + 1), length);
    cr_assert_eq(strlen(text), length);
    return text;
}

static void check_same_op(const tp_plan_op *a, const tp_plan_op *b)
{
    cr_assert(a->kind == b->kind && a->lane == b->lane && a->part == b->part && a->piece == b->piece &&
              a->pieces == b->pieces && a->step == b->step && a->peer == b->peer && a->collective == b->collective);
    cr_assert(a->waits == b->waits && a->reads == b->reads && a->writes == b->writes);
    cr_assert(a->waits == 0 || memcmp(a->wait, b->wait, (size_t)a->waits * sizeof *a->wait) == 0);
    cr_assert(a->reads == 0 || memcmp(a->read, b->read, (size_t)a->reads * sizeof *a->read) == 0);
    cr_assert(a->writes == 0 || memcmp(a->write, b->write, (size_t)a->writes * sizeof *a->write) == 0);
}

static void check_round_trip(const tp_plan *plan)
{
    char *text = print(plan);
    tp_plan *parsed;
    cr_assert_eq(tp_plan_parse(text, &parsed), TP_OK, "%s\n%s", tp_last_message(), text);
    cr_assert(parsed->algorithm == plan->algorithm && parsed->pattern == plan->pattern &&
              parsed->ranks == plan->ranks && parsed->chunks == plan->chunks);
    for (int rank = 0; rank < plan->ranks; rank++) {
        cr_assert_eq(parsed->rank[rank].count, plan->rank[rank].count);
        for (int i = 0; i < plan->rank[rank].count; i++)
            check_same_op(&parsed->rank[rank].op[i], &plan->rank[rank].op[i]);
    }
    char *again = print(parsed);
    cr_assert_str_eq(again, text);
    tp_plan_destroy(parsed);
    free(again);
    free(text);
}

Test(text, round_trip)
{
    static const int sizes[][2] = {{1, 1}, {1, 3}, {2, 1}, {2, 4}, {3, 2}, {5, 3}, {8, 2}, {16, 1}};
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++)
        for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                tp_plan *plan = create((tp_overlap)algorithm, (tp_pattern)pattern, sizes[i][0], sizes[i][1]);
                check_round_trip(plan);
                tp_plan_destroy(plan);
            }
}

Test(text, large)
{
    tp_plan *plan = create(TP_OVERLAP_RING, TP_PATTERN_CHAIN, 16, 16);
    check_round_trip(plan);
    tp_plan_destroy(plan);
}

/* A buffer that is too small gets what fits, and the length is told all the same. */
Test(text, short_buffer)
{
    tp_plan *plan = create(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 2);
    char *text = print(plan), cut[20];
    size_t length = strlen(text);
    memset(cut, '#', sizeof cut);
    cr_assert_eq(tp_plan_print(plan, cut, 10), length);
    cr_assert_eq(strlen(cut), 9);
    cr_assert_eq(memcmp(cut, text, 9), 0);
    cr_assert_eq(cut[10], '#');
    char *tight = tpt_allocate(length + 1);
    cr_assert_eq(tp_plan_print(plan, tight, length), length);
    cr_assert_eq(strlen(tight), length - 1);
    free(tight);
    free(text);
    tp_plan_destroy(plan);
}

static const struct golden {
    tp_overlap algorithm;
    tp_pattern pattern;
    int ranks, chunks;
    bool one_lane;
} goldens[] = {
    {TP_OVERLAP_NONE, TP_PATTERN_GEMM, 2, 1, false},
    {TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 2, 1, false},
    {TP_OVERLAP_NONE, TP_PATTERN_BACKWARD, 3, 1, false},
    {TP_OVERLAP_NONE, TP_PATTERN_CHAIN_CORE, 2, 1, false},
    {TP_OVERLAP_BULK, TP_PATTERN_BACKWARD, 2, 1, false},
    {TP_OVERLAP_BULK, TP_PATTERN_BACKWARD_REDUCE, 2, 1, false},
    {TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 3, 2, false},
    {TP_OVERLAP_RING, TP_PATTERN_GEMM_SCATTER, 2, 2, false},
    {TP_OVERLAP_RING, TP_PATTERN_GEMM_REDUCE, 2, 2, false},
    {TP_OVERLAP_RING, TP_PATTERN_CHAIN, 2, 2, false},
    {TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 2, 3, false},
    {TP_OVERLAP_PIPELINE, TP_PATTERN_GEMM_REDUCE, 2, 3, false},
    {TP_OVERLAP_PIPELINE, TP_PATTERN_BACKWARD, 2, 2, false},
    {TP_OVERLAP_PIPELINE, TP_PATTERN_CHAIN_CORE_REDUCE, 2, 2, false},
    {TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 3, 1, false},
    {TP_OVERLAP_PULL, TP_PATTERN_GATHER_WEIGHT, 2, 2, false},
    {TP_OVERLAP_PULL, TP_PATTERN_GEMM_REDUCE, 2, 2, false},
    {TP_OVERLAP_PULL, TP_PATTERN_CHAIN_CORE, 2, 2, false},
    {TP_OVERLAP_PULL, TP_PATTERN_ROW_BACKWARD, 2, 2, false},
    {TP_OVERLAP_DIRECT, TP_PATTERN_ROW_BACKWARD, 3, 1, false},
    {TP_OVERLAP_BULK, TP_PATTERN_ROW_BACKWARD, 2, 1, false},
    {TP_OVERLAP_PULL, TP_PATTERN_CHAIN_CORE_BACKWARD, 2, 2, false},
    {TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, 3, 1, false},
    {TP_OVERLAP_DIRECT, TP_PATTERN_GEMM_REDUCE, 2, 2, false},
    {TP_OVERLAP_DIRECT, TP_PATTERN_BACKWARD, 2, 2, false},
    {TP_OVERLAP_DIRECT, TP_PATTERN_CHAIN_REDUCE, 2, 2, false},
    {TP_OVERLAP_PULL, TP_PATTERN_GEMM_REDUCE, 3, 1, true},
    {TP_OVERLAP_PULL, TP_PATTERN_CHAIN, 2, 2, true},
};

static void golden_path(const struct golden *golden, char path[512])
{
    snprintf(path, 512, TPT_TESTS_FOLDER "/plan/golden/%s%s_%s_%dx%d.txt", tp_overlap_name(golden->algorithm),
             golden->one_lane ? "-one-lane" : "", tp_pattern_name(golden->pattern), golden->ranks, golden->chunks);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    cr_assert(file != NULL, "%s cannot be read", path);
    char *text = tpt_allocate(1 << 16);
    text[fread(text, 1, (1 << 16) - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL, "%s cannot be written", path);
    fputs(text, file);
    fclose(file);
}

Test(text, golden)
{
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        const struct golden *golden = &goldens[i];
        tp_plan *plan, *parsed;
        cr_assert_eq(tp_plan_create(&(tp_plan_desc){golden->algorithm, golden->pattern, golden->ranks, golden->chunks,
                                                    golden->one_lane},
                                    &plan),
                     TP_OK);
        char path[512], *text = print(plan);
        golden_path(golden, path);
        if (getenv("TPT_UPDATE_GOLDEN") != NULL)
            write_file(path, text);
        char *wanted = read_file(path);
        cr_assert_str_eq(text, wanted, "%s", path);
        cr_assert_eq(tp_plan_parse(wanted, &parsed), TP_OK, "%s: %s", path, tp_last_message());
        tp_proof proof;
        cr_assert_eq(tp_plan_verify(parsed, &proof), TP_OK);
        cr_assert(proof.proven, "%s: %s", path, proof.message);
        tp_plan_destroy(parsed);
        tp_plan_destroy(plan);
        free(wanted);
        free(text);
    }
}

#define HEAD "plan ring gather-gemm ranks 2 chunks 2\n"

static const struct hostile {
    const char *text, *message; /* what the message must contain */
} hostiles[] = {
    {"", "line 1, column 1: expected \"plan \", found the end"},
    {"plan", "line 1, column 1"},
    {"plan fast gather-gemm ranks 2 chunks 2\n0:\n1:\n", "line 1, column 6: expected an algorithm, found 'f'"},
    {"plan auto gather-gemm ranks 2 chunks 2\n0:\n1:\n", "column 6: expected an algorithm"},
    {"plan ring gather ranks 2 chunks 2\n0:\n1:\n", "column 11: expected a pattern"},
    {"plan ring gather-gemm ranks 0 chunks 2\n", "expected ranks from 1 to 64"},
    {"plan ring gather-gemm ranks 65 chunks 2\n", "expected ranks from 1 to 64"},
    {"plan ring gather-gemm ranks 99999999999999999999999 chunks 2\n", "expected ranks from 1 to 64"},
    {"plan ring gather-gemm ranks 2 chunks 17\n", "line 1, column 38: expected chunks from 1 to 16, found 17"},
    {"plan ring gather-gemm ranks 2 chunks 123456789012345678901234\n",
     "expected chunks from 1 to 16, found 12345678901234567890..."},
    {"plan ring gather-gemm ranks 2 chunks -1\n", "expected chunks from 1 to 16, found '-'"},
    {"plan ring gather-gemm ranks 2 chunks 2 \n", "line 1, column 39: expected the line's end, found ' '"},
    {"plan ring gather-gemm ranks 2 chunks 2", "expected the line's end, found the end"},
    {HEAD, "line 2, column 1: expected rank from 0 to 0, found the end"},
    {HEAD "1:\n0:\n", "line 2, column 1: expected rank from 0 to 0"},
    {HEAD "0:\n", "line 3, column 1: expected rank from 1 to 1"},
    {HEAD "0:\n1:\n2:\n", "line 4, column 1: expected the end, found 2"},
    {HEAD "0: E;\n1:\n", "line 2, column 6: expected an op's letter, found the line's end"},
    {HEAD "0: E; ; L\n1:\n", "column 7: expected an op's letter, found ';'"},
    {HEAD "0: X\n1:\n", "column 4: expected an op's letter, found 'X'"},
    {HEAD "0: E L\n1:\n", "column 6: expected \";\" or the line's end, found 'L'"},
    {HEAD "0: \x01\n1:\n", "found byte 0x01"},
    {HEAD "0: \xff\n1:\n", "found byte 0xff"},
    {HEAD "0: E\t\n1:\n", "found byte 0x09"},
    {HEAD "0: G4294967296 0\n1:\n", "expected part from 0"},
    {HEAD "0: G0 4\n1:\n", "line 2, column 7: expected piece from 0 to 3, found 4"},
    {HEAD "0: G0 0x5\n1:\n", "expected number of pieces from 0 to 4, found 5"},
    {HEAD "0: G0 1x4\n1:\n", "line 2, column 7: the last of 4 pieces from 1 is 4, must be 0 to 3"},
    {HEAD "0: G0 0x3/2\n1:\n", "the last of 3 pieces from 0 is 4, must be 0 to 3"},
    {HEAD "0: G0 0x2/99999999\n1:\n", "expected step from 0 to 4"},
    {HEAD "0: G0 0x\n1:\n", "expected number of pieces"},
    {HEAD "0: S 0 ~2\n1:\n", "expected peer from 0 to 1, found 2"},
    {HEAD "0: S 0 ~\n1:\n", "expected peer"},
    {HEAD "0: S 0 @quick\n1:\n", "column 9: expected a lane's name, found 'q'"},
    {HEAD "0: E after\n1:\n", "expected op from 0"},
    {HEAD "0: E after 1\n1:\n", "line 2, column 12: a wait for op 1 of rank 0, which has 1 ops"},
    {HEAD "0: E; L after 0, 1.0\n1:\n", "line 2, column 18: a wait for op 0 of rank 1, which has 0 ops"},
    {HEAD "0: E; L after 7.0\n1: E\n", "line 2, column 15: a wait for an op of rank 7: there are 2 ranks"},
    {HEAD "0: E; L after 0,\n1: E\n", "expected op from 0"},
    {HEAD "0: E writes\n1:\n", "expected a buffer's name"},
    {HEAD "0: E writes outbox[0]\n1:\n", "column 13: expected a buffer's name"},
    {HEAD "0: E writes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa[0]\n1:\n", "expected a buffer's name"},
    {HEAD "0: E writes input\n1:\n", "expected \"[\""},
    {HEAD "0: E writes input[\n1:\n", "expected piece from 0 to 3, found the line's end"},
    {HEAD "0: E writes input[0\n1:\n", "expected \"]\""},
    {HEAD "0: E writes input[4]\n1:\n", "expected piece from 0 to 3"},
    {HEAD "0: E writes gradient[1]\n1:\n", "expected piece from 0 to 0"},
    {HEAD "0: E writes inbox#2[0]\n1:\n", "expected slot from 0 to 1"},
    {HEAD "0: E writes 2:input[0]\n1:\n", "expected rank from 0 to 1"},
    {HEAD "0: E writes 1 input[0]\n1:\n", "expected \":\""},
    {HEAD "0: E writes input[0] reads input[0]\n1:\n", "expected \";\" or the line's end, found 'r'"},
    {HEAD "0: E\r1:\n", "line 2, column 5: expected \";\" or the line's end, found byte 0x0d"},
    {HEAD "0: E\r\r\n1:\n", "found byte 0x0d"},
    {HEAD "0: E\n1:\n\r", "found byte 0x0d"},
    {HEAD "0: E;\r\n1:\n", "column 6: expected an op's letter, found the line's end"},
    {HEAD "0: E\r\n1: L after 0.1\r\n", "line 3, column 12: a wait for op 1 of rank 0"},
};

Test(text, hostile)
{
    for (size_t i = 0; i < sizeof hostiles / sizeof hostiles[0]; i++) {
        tp_plan *plan = (tp_plan *)&plan;
        cr_assert_eq(tp_plan_parse(hostiles[i].text, &plan), TP_ERR_FORMAT, "%s", hostiles[i].text);
        cr_assert_null(plan);
        cr_expect(strstr(tp_last_message(), hostiles[i].message) != NULL, "%s\n-> %s", hostiles[i].text,
                  tp_last_message());
    }
    tp_plan *plan;
    cr_assert_eq(tp_plan_parse(NULL, &plan), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_plan_parse(HEAD, NULL), TP_ERR_ARGUMENT);
}

/* Lines that end as on Windows give the same plan. */
Test(text, carriage_returns)
{
    tp_plan *plan = create(TP_OVERLAP_PULL, TP_PATTERN_CHAIN, 3, 2), *parsed;
    char *text = print(plan), *lines = malloc(2 * strlen(text) + 8), *at = lines;
    for (const char *from = text; *from != '\0'; *at++ = *from++)
        if (*from == '\n')
            *at++ = '\r';
    memcpy(at, "\r\n\n", 4); /* empty lines after it, of both kinds */
    cr_assert_eq(tp_plan_parse(lines, &parsed), TP_OK, "%s", tp_last_message());
    char *again = print(parsed);
    cr_assert_str_eq(again, text);
    tp_plan_destroy(parsed);
    tp_plan_destroy(plan);
    free(again);
    free(lines);
    free(text);
}

/* Any byte changed, and the text cut anywhere: refused, or a plan that verify can look at and that prints. */
static void try_text(const char *text, int *accepted)
{
    tp_plan *plan;
    tp_status status = tp_plan_parse(text, &plan);
    if (status != TP_OK) {
        cr_assert_eq(status, TP_ERR_FORMAT);
        return;
    }
    tp_proof proof;
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
    check_round_trip(plan);
    tp_plan_destroy(plan);
    (*accepted)++;
}

Test(text, damaged)
{
    tp_plan *plan = create(TP_OVERLAP_PULL, TP_PATTERN_GEMM_REDUCE, 2, 1);
    char *text = print(plan);
    size_t length = strlen(text);
    int accepted = 0, tried = 0;
    static const char bytes[] = "0179xX/~@.,;:#[] \nEGSafg-\x80";
    for (size_t i = 0; i < length; i++) {
        char kept = text[i];
        for (const char *byte = bytes; *byte != '\0'; byte++, tried++) {
            text[i] = *byte;
            try_text(text, &accepted);
        }
        text[i] = '\0';
        try_text(text, &accepted);
        text[i] = kept;
    }
    cr_log_info("%d damaged texts, %d of them are plans", tried, accepted);
    cr_assert_lt(accepted, tried);
    free(text);
    tp_plan_destroy(plan);
}
