/* Ranks that call different layers, or come too late, under every overlap algorithm: all of them are told, soon, which
 * plans met or who did not come. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tp/tp.h>

#include "core/context.h"

enum { TOKENS = 13, MOST_RANKS = 3, FIRST = 20, SECOND = 16, WIDTH = 24, LONG_MS = 20000 };

typedef enum fault { BACKWARD_FOR_FORWARD, OTHER_LAYER, OTHER_DTYPE, OTHER_COLLECTIVE, LATE, GONE } fault;

typedef struct scene {
    fault fault; /* rank 1's */
    tp_linear_kind kind;
    bool sequence_parallel;
    tp_overlap overlap;
    int ranks;
    bool ahead; /* ranks meet when they issue, as on devices */
    atomic_int failed; /* ranks that have returned with an error */
    float value;       /* rank 1's, for a collective: where ranks issue ahead it is read after the call */
    tp_status status[MOST_RANKS];
    char message[MOST_RANKS][512];
} scene;

static tp_status make(tp_ctx *ctx, const scene *s, int64_t width, tp_dtype dtype, tp_linear **out)
{
    bool row = s->kind == TP_LINEAR_ROW;
    const tp_linear_desc desc = {.name = "layer",
                                 .kind = s->kind,
                                 .in_features = row ? WIDTH : width,
                                 .out_features = row ? width : WIDTH,
                                 .dtype = dtype,
                                 .bias = true,
                                 .sequence_parallel = s->sequence_parallel,
                                 .overlap = s->overlap,
                                 .chunks = 2};
    tp_status status = tp_linear_create(ctx, &desc, out);
    tp_param *param[2];
    return status != TP_OK ? status : tp_params_init(ctx, param, tp_linear_params(*out, param, 2));
}

/* Forward or backward, on zeros. */
static tp_status call(tp_ctx *ctx, const scene *s, const tp_linear *layer, int64_t width, tp_dtype dtype, bool backward)
{
    const tp_pass pass = {.tokens = TOKENS};
    tp_range own = tp_pass_rows(ctx, &pass, s->sequence_parallel);
    int64_t mine = own.end - own.begin, local = tp_linear_local_features(layer);
    float *memory = calloc((size_t)2 * TOKENS * WIDTH, sizeof *memory);
    cr_assert_not_null(memory);
    tp_tensor wide = tp_tensor_2d(memory, dtype, mine, width);
    tp_tensor cut = tp_tensor_2d(memory + TOKENS * WIDTH, dtype, TOKENS, local);
    bool row = s->kind == TP_LINEAR_ROW;
    const tp_io forward = {.in = row ? cut : wide, .out = row ? wide : cut},
                back = {.in = forward.out, .out = forward.in};
    tp_linear_saved saved = {.x = forward.in};
    tp_status status = backward ? tp_linear_backward(ctx, layer, &pass, &back, &saved)
                                : tp_linear_forward(ctx, layer, &pass, &forward, &saved);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    free(memory);
    return status;
}

static tp_status call_wrongly(tp_ctx *ctx, scene *s, const tp_linear *first, const tp_linear *second)
{
    const tp_tensor one = tp_tensor_2d(&s->value, TP_DTYPE_F32, 1, 1);
    switch (s->fault) {
    case BACKWARD_FOR_FORWARD: return call(ctx, s, first, FIRST, TP_DTYPE_F32, true);
    case OTHER_LAYER: return call(ctx, s, second, SECOND, TP_DTYPE_F32, false);
    case OTHER_DTYPE: return call(ctx, s, second, FIRST, TP_DTYPE_BF16, false);
    case GONE: return TP_OK;
    case OTHER_COLLECTIVE: return tp_all_reduce(ctx, tp_ctx_group(ctx, TP_AXIS_TP), one, one, NULL);
    default:
        for (int i = 0; i < LONG_MS && atomic_load(&s->failed) < s->ranks - 1; i++)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        return call(ctx, s, first, FIRST, TP_DTYPE_F32, false);
    }
}

static tp_status run(tp_ctx *ctx, void *arg)
{
    scene *s = arg;
    int rank = tp_ctx_rank(ctx);
    tp_linear *first = NULL, *second = NULL;
    if (s->ahead)
        tpi_ctx_issue_ahead(ctx);
    tp_status status = make(ctx, s, FIRST, TP_DTYPE_F32, &first);
    if (status == TP_OK)
        status = s->fault == OTHER_DTYPE ? make(ctx, s, FIRST, TP_DTYPE_BF16, &second)
                                         : make(ctx, s, SECOND, TP_DTYPE_F32, &second);
    if (status == TP_OK)
        status = call(ctx, s, first, FIRST, TP_DTYPE_F32, false);
    if (status == TP_OK)
        status = rank == 1 ? call_wrongly(ctx, s, first, second) : call(ctx, s, first, FIRST, TP_DTYPE_F32, false);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    s->status[rank] = status;
    snprintf(s->message[rank], sizeof s->message[rank], "%s", tp_ctx_message(ctx));
    atomic_fetch_add(&s->failed, status != TP_OK);
    tp_linear_destroy(first);
    tp_linear_destroy(second);
    return status;
}

static void check_mismatch(scene *s, uint64_t lane_delay_seed)
{
    const tp_run_options options = {.ranks = s->ranks,
                                    .check_calls = true,
                                    .ctx = {.threads = 1, .lane_delay_seed = lane_delay_seed, .timeout_ms = LONG_MS}};
    tp_run_ranks(&options, run, s);
    char plan[64];
    snprintf(plan, sizeof plan, "plan %s g", tp_overlap_name(s->overlap));
    for (int rank = 0; rank < s->ranks; rank++) {
        const char *message = s->message[rank];
        cr_expect_eq(s->status[rank], TP_ERR_MISMATCH, "%s, fault %d, rank %d: %s", tp_overlap_name(s->overlap),
                     s->fault, rank, message);
        cr_expect(strstr(message, plan) && strstr(message, "rank 0") && strstr(message, "rank 1"), "%s", message);
        if (s->fault == BACKWARD_FOR_FORWARD)
            cr_expect_not_null(strstr(strstr(message, plan) + 1, "rank 1 called plan"), "%s", message);
        if (s->fault != OTHER_LAYER)
            cr_expect(strstr(message, "in 2 chunks") && strstr(message, " for 13 tokens"), "%s", message);
        else
            cr_expect(strstr(message, "has 20 columns, that of rank 1 16"), "%s", message);
        if (s->fault == OTHER_DTYPE)
            cr_expect(strstr(message, " of rank 0 is f32, that of rank 1 bf16"), "%s", message);
        if (s->fault == OTHER_COLLECTIVE)
            cr_expect_not_null(strstr(message, "rank 1 called all_reduce(sum, f32, 1 x 1)"), "%s", message);
    }
}

static void check_every_algorithm(fault planted)
{
    for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_AUTO; overlap++)
        for (int i = 0; i < 8; i++) {
            bool row = i % 2, split = i / 2 % 2 || (planted != OTHER_LAYER && planted != OTHER_DTYPE);
            if (!row && !split) /* a forward pass that says nothing to other ranks */
                continue;
            scene s = {.fault = planted,
                       .kind = row ? TP_LINEAR_ROW : TP_LINEAR_COLUMN,
                       .sequence_parallel = split,
                       .overlap = (tp_overlap)overlap,
                       .ranks = MOST_RANKS,
                       .ahead = i / 4};
            check_mismatch(&s, i / 2 % 2 ? 0 : 5);
        }
}

Test(overlap_faults, backward_where_others_call_forward, .timeout = 120)
{
    check_every_algorithm(BACKWARD_FOR_FORWARD);
}

Test(overlap_faults, another_layer, .timeout = 120)
{
    check_every_algorithm(OTHER_LAYER);
}

Test(overlap_faults, another_dtype, .timeout = 120)
{
    check_every_algorithm(OTHER_DTYPE);
}

Test(overlap_faults, a_collective_where_others_call_a_layer, .timeout = 120)
{
    check_every_algorithm(OTHER_COLLECTIVE);
}

/* Whoever waits says for what and for whom; that a lane waits for another one of its own rank helps nobody. */
static void check_late(tp_overlap overlap, tp_linear_kind kind, uint64_t lane_delay_seed)
{
    scene s = {.fault = LATE, .kind = kind, .sequence_parallel = true, .overlap = overlap, .ranks = 2};
    const tp_run_options options = {.ranks = 2,
                                    .ctx = {.threads = 1, .lane_delay_seed = lane_delay_seed, .timeout_ms = 600}};
    cr_expect_eq(tp_run_ranks(&options, run, &s), TP_ERR_TIMEOUT, "%s", tp_last_message());
    const char *message = s.message[0];
    char plan[96]; /* pull says, too, if it has one lane */
    snprintf(plan, sizeof plan, "plan %s %s in 2 chunks", tp_overlap_name(overlap),
             kind == TP_LINEAR_ROW ? "gemm-scatter" : "gather-gemm");
    cr_expect_eq(s.status[0], TP_ERR_TIMEOUT, "%s", message);
    if (overlap == TP_OVERLAP_RING || overlap == TP_OVERLAP_PULL || overlap == TP_OVERLAP_DIRECT) {
        cr_expect_not_null(strstr(message, plan), "%s", message);
        cr_expect_not_null(strstr(message, " on a group of 2 ranks: rank 0 waited 600 ms for "), "%s", message);
        cr_expect_not_null(strstr(message, "rank 1 to "), "%s", message);
        cr_expect(lane_delay_seed != 0 || strstr(message, "for op "), "%s", message);
    } else {
        cr_expect_not_null(strstr(message, "rank 0 waited 600 ms, rank 1 did not come"), "%s", message);
    }
    cr_expect_eq(s.status[1], TP_ERR_PEER, "%s", s.message[1]);
}

Test(overlap_faults, a_late_rank_is_named, .timeout = 120)
{
    for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_AUTO; overlap++) {
        check_late((tp_overlap)overlap, TP_LINEAR_COLUMN, overlap % 2 ? 9 : 0);
        check_late((tp_overlap)overlap, TP_LINEAR_ROW, overlap % 2 ? 0 : 9);
    }
}

/* A rank whose function has ended will not come: who waits for it is told at once. */
Test(overlap_faults, a_rank_that_has_gone_is_not_waited_for, .timeout = 120)
{
    for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_AUTO; overlap++)
        for (int i = 0; i < 4; i++) {
            scene s = {.fault = GONE,
                       .kind = i % 2 ? TP_LINEAR_ROW : TP_LINEAR_COLUMN,
                       .sequence_parallel = true,
                       .overlap = (tp_overlap)overlap,
                       .ranks = MOST_RANKS};
            const tp_run_options options = {
                .ranks = s.ranks, .ctx = {.threads = 1, .lane_delay_seed = i / 2 ? 7 : 0, .timeout_ms = LONG_MS}};
            cr_expect_eq(tp_run_ranks(&options, run, &s), TP_ERR_STATE, "%s", tp_last_message());
            for (int rank = 0; rank < s.ranks; rank++) {
                cr_expect_eq(s.status[rank], rank == 1 ? TP_OK : TP_ERR_PEER, "%s, kind %d, rank %d: %s",
                             tp_overlap_name(s.overlap), (int)s.kind, rank, s.message[rank]);
                cr_expect(rank == 1 || strstr(s.message[rank], "destroyed its "), "%s", s.message[rank]);
            }
        }
}
