/* For tests that run on several ranks: checks inside a rank's function, which end the whole run and name the place. */
#ifndef TPT_RANKS_H
#define TPT_RANKS_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <tp/comm.h>
#include <unistd.h>

#include "comm/table.h"
#include "support/data.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* In a rank's function: a false condition returns TP_ERR_INTERNAL with the place. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return tpi_message(TP_ERR_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, #condition);                          \
    } while (0)

typedef tp_status (*tpt_rank_fn)(tp_ctx *ctx, void *arg);

/* A TCP port of this machine that is free now. */
static inline int tpt_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int probe = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(probe, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(getsockname(probe, (struct sockaddr *)&address, &bytes), 0);
    close(probe);
    return ntohs(address.sin_port);
}

static inline void tpt_run_with(tp_run_options options, tpt_rank_fn fn, void *arg)
{
    if (options.ctx.threads == 0)
        options.ctx.threads = 1;
    tp_status status = tp_run_ranks(&options, fn, arg);
    cr_assert_eq(status, TP_OK, "%d ranks: %s: %s", options.ranks, tp_status_name(status), tp_last_message());
}

/* In device order too: ranks wait for each other when they issue. */
typedef struct tpt_ahead {
    tpt_rank_fn fn;
    void *arg;
} tpt_ahead;

static inline tp_status tpt_run_ahead(tp_ctx *ctx, void *arg)
{
    const tpt_ahead *ahead = arg;
    tpi_ctx_issue_ahead(ctx);
    return ahead->fn(ctx, ahead->arg);
}

/* Both orders. */
static inline void tpt_run_both(tp_run_options options, tpt_rank_fn fn, void *arg)
{
    tpt_run_with(options, fn, arg);
    tpt_ahead ahead = {fn, arg};
    tpt_run_with(options, tpt_run_ahead, &ahead);
}

static inline void tpt_run(int ranks, tpt_rank_fn fn, void *arg)
{
    tpt_run_both((tp_run_options){.ranks = ranks}, fn, arg);
}

#endif
