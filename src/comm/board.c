/* A board without peers. */
#include "comm/board.h"

#include "comm/table.h"

typedef struct lone_board {
    tpi_board base;
    void *page;
    size_t page_bytes;
} lone_board;

static void destroy(tp_ctx *ctx, tpi_board *base)
{
    lone_board *board = (lone_board *)base;
    if (board == NULL)
        return;
    if (board->page != NULL)
        tpi_host_release(ctx, board->page, board->page_bytes);
    tpi_host_release(ctx, board, sizeof *board);
}

static tp_status create(tp_ctx *ctx, tp_comm *comm, const tpi_board_desc *desc, tpi_board **out)
{
    *out = NULL;
    lone_board *board = tpi_host_allocate(ctx, sizeof *board);
    if (board == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "plan: no memory for a board");
    board->base = (tpi_board){&tpi_board_alone, comm};
    board->page_bytes = desc->page_bytes > 0 ? desc->page_bytes : 1;
    board->page = tpi_host_allocate(ctx, board->page_bytes);
    if (board->page == NULL) {
        destroy(ctx, &board->base);
        return tpi_refuse(ctx, TP_ERR_MEMORY, "plan: no memory for a board");
    }
    *out = &board->base;
    return TP_OK;
}

static void *page(const tpi_board *base, int rank)
{
    (void)rank;
    return ((const lone_board *)base)->page;
}

static void raise_flag(tpi_board *board, int flag, unsigned epoch, int64_t stamp, const int *peer, int peers)
{
    (void)board;
    (void)flag;
    (void)epoch;
    (void)stamp;
    (void)peer;
    (void)peers;
}

static tp_status wait_flag(tpi_board *board, const tpi_board_wait *wait, int64_t *stamp)
{
    (void)board;
    (void)wait;
    if (stamp != NULL)
        *stamp = 0;
    return TP_OK;
}

static bool flag_reached(const tpi_board *board, int rank, int flag, unsigned epoch)
{
    (void)board;
    (void)rank;
    (void)flag;
    (void)epoch;
    return true;
}

static tp_status touch(tpi_board *board)
{
    (void)board;
    return TP_OK;
}

static void nothing(tpi_board *board)
{
    (void)board;
}

static int64_t deliver(tpi_board *board, int from, int to, size_t bytes, int64_t stamp)
{
    (void)board;
    (void)from;
    (void)to;
    (void)bytes;
    return stamp;
}

static void sleep_until(tpi_board *board, int64_t stamp)
{
    (void)board;
    (void)stamp;
}

const tpi_board_table tpi_board_alone = {
    .create = create,
    .destroy = destroy,
    .page = page,
    .raise = raise_flag,
    .wait = wait_flag,
    .reached = flag_reached,
    .touch = touch,
    .untouch = nothing,
    .settle = nothing,
    .deliver = deliver,
    .sleep_until = sleep_until,
};
