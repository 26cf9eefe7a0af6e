/* Messages of plans in groups, for ranks that don't reach each other's memory: every plan of messages alone can be
 * issued so, no rank waits in a circle, and what waits for a message is issued behind it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <tp/overlap.h>

#include "plan/execute_state.h"

enum { MOST_RANKS = 8, LONG_RANKS = 16 };

/* Ranks with groups still to come. */
typedef struct scene {
    const tp_plan *plan;
    tpi_messages of[LONG_RANKS];
    int next[LONG_RANKS]; /* first message of the group under way */
} scene;

static const tpi_grouped *message_of(const scene *s, int rank, int op)
{
    for (int m = 0; m < s->of[rank].count; m++)
        if (s->of[rank].message[m].op == op)
            return &s->of[rank].message[m];
    cr_assert(false, "op %d of rank %d is no message", op, rank);
    return NULL;
}

/* A group is over when the partners of all its messages have begun: they are in groups that are under way, or over. */
static bool end_group(scene *s, int rank)
{
    const tpi_messages *all = &s->of[rank];
    int first = s->next[rank], last = first;
    for (; last < all->count && all->message[last].level == all->message[first].level; last++) {
        const tp_plan_op *op = &s->plan->rank[rank].op[all->message[last].op];
        const tpi_grouped *other = message_of(s, op->peer, tpi_partner_of(s->plan, rank, all->message[last].op));
        int under_way =
            s->next[op->peer] < s->of[op->peer].count ? s->of[op->peer].message[s->next[op->peer]].level : 1 << 30;
        if (other->level > under_way)
            return false;
    }
    s->next[rank] = last;
    return last > first;
}

static void check_order(const scene *s, int rank)
{
    const tp_plan_rank *list = &s->plan->rank[rank];
    for (int m = 0; m < s->of[rank].count; m++) {
        const tpi_grouped *message = &s->of[rank].message[m];
        cr_assert_geq(message->issued, message->op);
        cr_assert(m == 0 || (message->level >= message[-1].level && message->issued >= message[-1].issued));
        cr_assert(m == 0 || message->level > message[-1].level ||
                  (message->op > message[-1].op && message->issued == message[-1].issued));
        const tpi_grouped *other =
            message_of(s, list->op[message->op].peer, tpi_partner_of(s->plan, rank, message->op));
        cr_assert_eq(other->level, message->level, "both sides are in groups of one level");
        for (int i = 0; i < list->count; i++)
            for (int w = 0; w < list->op[i].waits; w++)
                cr_assert(list->op[i].wait[w].op != message->op || i > message->issued ||
                          list->op[i].kind == TP_OP_SEND || list->op[i].kind == TP_OP_RECV);
    }
}

/* Number of messages. */
static int check(tp_ctx *ctx, tp_plan_desc desc)
{
    tp_plan *plan;
    int messages = 0, left;
    cr_assert_eq(tp_plan_create(&desc, &plan), TP_OK, "%s", tp_last_message());
    scene s = {.plan = plan};
    if (desc.ranks == 1) {
        cr_assert(!tpi_messages_suffice(plan));
        tp_plan_destroy(plan);
        return 0;
    }
    cr_assert(tpi_messages_suffice(plan), "%s on %d ranks", tp_pattern_name(desc.pattern), desc.ranks);
    for (int rank = 0; rank < desc.ranks; rank++) {
        cr_assert_eq(tpi_messages_find(ctx, plan, rank, &s.of[rank]), TP_OK, "%s", tp_ctx_message(ctx));
        messages += s.of[rank].count;
    }
    for (int rank = 0; rank < desc.ranks; rank++)
        check_order(&s, rank);
    do { /* in any order of ranks: a group that is over stays so */
        bool moved = false;
        left = 0;
        for (int rank = 0; rank < desc.ranks; rank++) {
            moved = (s.next[rank] < s.of[rank].count && end_group(&s, rank)) || moved;
            left += s.next[rank] < s.of[rank].count;
        }
        cr_assert(moved || left == 0, "%s on %d ranks in %d chunks: %d ranks wait for each other",
                  tp_pattern_name(desc.pattern), desc.ranks, desc.chunks, left);
    } while (left > 0);
    for (int rank = 0; rank < desc.ranks; rank++)
        tpi_messages_free(ctx, &s.of[rank]);
    tp_plan_destroy(plan);
    return messages;
}

static bool has_ring(int pattern)
{
    return pattern != TP_PATTERN_GEMM;
}

Test(messages, every_ring)
{
    tp_ctx *ctx;
    int messages = 0;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
        for (int ranks = 1; ranks <= MOST_RANKS && has_ring(pattern); ranks++)
            for (int chunks = 1; chunks <= 4; chunks++)
                messages += check(ctx, (tp_plan_desc){.algorithm = TP_OVERLAP_RING,
                                                      .pattern = (tp_pattern)pattern,
                                                      .ranks = ranks,
                                                      .chunks = chunks});
    cr_assert_gt(messages, 1000);
    check(ctx, (tp_plan_desc){.algorithm = TP_OVERLAP_RING,
                              .pattern = TP_PATTERN_CHAIN_BACKWARD_REDUCE,
                              .ranks = LONG_RANKS,
                              .chunks = 2});
    tp_ctx_destroy(ctx);
}

/* What touches peers' memory, or goes by collectives, is none. */
Test(messages, other_algorithms)
{
    for (int algorithm = TP_OVERLAP_NONE; algorithm < TP_OVERLAP_AUTO; algorithm++) {
        tp_plan *plan;
        const tp_plan_desc desc = {
            .algorithm = (tp_overlap)algorithm, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 3, .chunks = 1};
        cr_assert_eq(tp_plan_create(&desc, &plan), TP_OK, "%s", tp_last_message());
        cr_assert_eq(tpi_messages_suffice(plan), algorithm == TP_OVERLAP_RING, "%s",
                     tp_overlap_name((tp_overlap)algorithm));
        tp_plan_destroy(plan);
    }
}

/* A hop of a ring is one group of a send and a receive. */
Test(messages, a_hop_is_a_group)
{
    tp_ctx *ctx;
    tp_plan *plan;
    tpi_messages messages;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    const tp_plan_desc desc = {
        .algorithm = TP_OVERLAP_RING, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 4, .chunks = 3};
    cr_assert_eq(tp_plan_create(&desc, &plan), TP_OK);
    for (int rank = 0; rank < 4; rank++) {
        cr_assert_eq(tpi_messages_find(ctx, plan, rank, &messages), TP_OK);
        cr_assert_eq(messages.count, 2 * 3 * 3);
        for (int m = 0; m < messages.count; m++)
            cr_assert_eq(messages.message[m].level, 1 + m / 2);
        tpi_messages_free(ctx, &messages);
    }
    tp_plan_destroy(plan);
    tp_ctx_destroy(ctx);
}

static tp_plan *parse(const char *text)
{
    tp_plan *plan;
    cr_assert_eq(tp_plan_parse(text, &plan), TP_OK, "%s", tp_last_message());
    return plan;
}

/* One wait for a peer's op, or one region in a peer's memory, is enough to need more. */
Test(messages, whatever_reaches_a_peer_needs_more)
{
    static const char head[] =
        "plan ring gather-gemm ranks 2 chunks 1\n"
        "0: E writes input[0], output[0x2]; S 0 ~1 @comm after 0 reads input[0]; V 1 ~1 @copy writes gathered[1]; L";
    static const struct {
        const char *leave, *more; /* of rank 0, of rank 1 */
    } cases[] = {{"", ""},
                 {" after 1.0", ""},
                 {"", "; P 0 ~0 @copy reads 0:input[0] writes gathered[0]"},
                 {"", "; U 1 ~0 @copy reads input[1] writes 0:gathered[1]"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "%s%s\n1: E writes input[1], output[0x2]; S 1 ~0 @comm after 0 reads input[1]; V 0 ~0 @copy writes "
                 "gathered[0]%s; L\n",
                 head, cases[i].leave, cases[i].more);
        tp_plan *plan = parse(text);
        cr_assert_eq(tpi_messages_suffice(plan), i == 0, "case %zu", i);
        tp_plan_destroy(plan);
    }
}

/* Rank 0 multiplies by what it receives before it issues the send that must begin with that: told, and nothing is kept.
 * Rank 1 could. */
Test(messages, a_use_inside_a_group_is_refused)
{
    tp_ctx *ctx;
    tpi_messages messages;
    tp_plan *plan = parse(
        "plan ring gather-gemm ranks 2 chunks 1\n"
        "0: E writes input[0], output[0x2]; V 1 ~1 @comm writes gathered[1]; G0 1 after 1 reads gathered[1] writes "
        "output[1]; "
        "S 0 ~1 @copy after 0 reads input[0]; L\n"
        "1: E writes input[1], output[0x2]; V 0 ~0 @comm writes gathered[0]; S 1 ~0 @copy after 0 reads input[1]; "
        "G0 0 after 1 reads gathered[0] writes output[0]; L\n");
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_assert_eq(tpi_messages_find(ctx, plan, 0, &messages), TP_ERR_UNSUPPORTED);
    cr_assert(strstr(tp_ctx_message(ctx), "rank 0 needs a message") != NULL, "%s", tp_ctx_message(ctx));
    cr_assert(messages.message == NULL && messages.count == 0);
    cr_assert_eq(tpi_messages_find(ctx, plan, 1, &messages), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert(messages.count == 2 && messages.message[0].issued == 2 && messages.message[1].issued == 2);
    tpi_messages_free(ctx, &messages);
    tp_plan_destroy(plan);
    tp_ctx_destroy(ctx);
}

/* Against the order of ranks, and of lists: rank 2 sends to rank 1, which sends that on to rank 0; beside it rank 0
 * sends to rank 2. */
Test(messages, levels_follow_chains)
{
    static const int levels[3][2] = {{1, 2}, {1, 2}, {1, 1}}, ops[3][2] = {{2, 1}, {1, 2}, {1, 2}},
                     issued[3][2] = {{2, 2}, {1, 2}, {2, 2}};
    tp_ctx *ctx;
    tpi_messages messages;
    tp_plan *plan = parse(
        "plan ring gather-gemm ranks 3 chunks 1\n"
        "0: E writes input[0], output[0x3]; V 2 ~1 @copy writes gathered[2]; S 0 ~2 @comm after 0 reads input[0]; L\n"
        "1: E writes input[1], output[0x3]; V 2 ~2 @copy writes gathered[2]; S 2 ~0 @comm after 1 reads gathered[2]; "
        "L\n"
        "2: E writes input[2], output[0x3]; S 2 ~1 @comm after 0 reads input[2]; V 0 ~0 @copy writes gathered[0]; L\n");
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    for (int rank = 0; rank < 3; rank++) {
        cr_assert_eq(tpi_messages_find(ctx, plan, rank, &messages), TP_OK, "%s", tp_ctx_message(ctx));
        cr_assert_eq(messages.count, 2);
        for (int m = 0; m < 2; m++) {
            const tpi_grouped *message = &messages.message[m];
            cr_expect(message->level == levels[rank][m] && message->op == ops[rank][m] &&
                          message->issued == issued[rank][m],
                      "rank %d, message %d: level %d, op %d, issued with %d", rank, m, message->level, message->op,
                      message->issued);
        }
        tpi_messages_free(ctx, &messages);
    }
    tpi_messages_share_lane(plan);
    for (int rank = 0; rank < 3; rank++)
        for (int i = 0; i < 4; i++)
            cr_expect_eq(plan->rank[rank].op[i].lane, i == 1 || i == 2 ? TP_LANE_COMM : TP_LANE_COMPUTE);
    tp_plan_destroy(plan);
    tp_ctx_destroy(ctx);
}
