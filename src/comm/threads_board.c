/* The board of thread ranks: one block of memory that the first rank makes and the last frees. A flag is a counter and
 * a stamp; whoever raises one rings the bells of those ranks that wait for it, and a rank sleeps on its own bell
 * only. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/threads.h"

typedef struct board_flag {
    atomic_uint epoch;
    atomic_int_fast64_t stamp;
} board_flag;

typedef struct board_seat {
    alignas(TPI_CACHE_LINE) tpi_word bell;
    alignas(TPI_CACHE_LINE) atomic_int touching; /* stretches of this rank's lanes that touch peers' memory */
    atomic_int gone;                             /* destroyed its board for good: raises no flag any more */
} board_seat;

struct tpi_shared_board {
    tp_world *world;
    tpi_shared_board *next; /* of the world's boards */
    int size;
    atomic_int holders;
    int flags;
    size_t page_stride;
    board_seat *seat;
    board_flag *flag; /* [rank][flags] */
    char *page;       /* [rank][page_stride] */
};

typedef struct thread_board {
    tpi_board base;
    tpi_shared_board *shared;
    char what[64]; /* for messages: the plan */
    int lanes;
    tpi_spin spin[]; /* [lanes] */
} thread_board;

static size_t whole_lines(size_t bytes)
{
    return (bytes + TPI_CACHE_LINE - 1) / TPI_CACHE_LINE * TPI_CACHE_LINE;
}

static size_t handle_bytes(int lanes)
{
    return sizeof(thread_board) + (size_t)lanes * sizeof(tpi_spin);
}

void tpi_shared_boards_fail(tpi_shared_board *first)
{
    for (tpi_shared_board *shared = first; shared; shared = shared->next)
        for (int rank = 0; rank < shared->size; rank++)
            tpi_word_fail(&shared->seat[rank].bell);
}

void tpi_shared_boards_free(tpi_shared_board *first)
{
    while (first) {
        tpi_shared_board *shared = first;
        first = shared->next;
        free(shared);
    }
}

static void world_enter(tp_world *world, tpi_shared_board *shared)
{
    pthread_mutex_lock(&world->lock);
    shared->next = world->boards;
    world->boards = shared;
    if (atomic_load(&world->failed) != TP_OK)
        for (int rank = 0; rank < shared->size; rank++)
            tpi_word_fail(&shared->seat[rank].bell);
    pthread_mutex_unlock(&world->lock);
}

static void world_leave(tp_world *world, tpi_shared_board *shared)
{
    pthread_mutex_lock(&world->lock);
    for (tpi_shared_board **link = &world->boards; *link; link = &(*link)->next)
        if (*link == shared) {
            *link = shared->next;
            break;
        }
    pthread_mutex_unlock(&world->lock);
}

static tpi_shared_board *shared_create(tp_world *world, int size, const tpi_board_desc *desc)
{
    size_t ranks = (size_t)size, page = whole_lines(desc->page_bytes);
    size_t seats = whole_lines(ranks * sizeof(board_seat)),
           flags = whole_lines(ranks * (size_t)desc->flags * sizeof(board_flag));
    size_t head = whole_lines(sizeof(tpi_shared_board)), bytes = head + seats + flags + ranks * page;
    char *memory = aligned_alloc(TPI_CACHE_LINE, bytes);
    if (!memory)
        return NULL;
    memset(memory, 0, bytes);
    tpi_shared_board *shared = (tpi_shared_board *)(void *)memory;
    shared->world = world;
    shared->size = size;
    atomic_init(&shared->holders, size);
    shared->flags = desc->flags;
    shared->page_stride = page;
    shared->seat = (board_seat *)(void *)(memory + head);
    shared->flag = (board_flag *)(void *)(memory + head + seats);
    shared->page = memory + head + seats + flags;
    world_enter(world, shared);
    return shared;
}

static void shared_release(tpi_shared_board *shared)
{
    if (!shared || atomic_fetch_sub(&shared->holders, 1) != 1)
        return;
    world_leave(shared->world, shared);
    free(shared);
}

/* What a rank brings to the exchange. */
typedef struct offer {
    tpi_shared_board *shared; /* of rank 0 only */
    tpi_board_desc desc;
    bool ready;
} offer;

static tp_status agree(tp_ctx *ctx, tp_comm *comm, const offer *mine, offer *offers)
{
    TPI_TRY(comm->table->exchange(ctx, comm, mine, offers, sizeof *mine));
    for (int rank = 0; rank < comm->size; rank++) {
        const tpi_board_desc *first = &offers[0].desc, *other = &offers[rank].desc;
        if (strcmp(other->what, first->what) != 0 || other->flags != first->flags ||
            other->page_bytes != first->page_bytes)
            return tpi_refuse(ctx, TP_ERR_MISMATCH, "rank 0 prepares plan %s with %d flags, rank %d %s with %d",
                              first->what, first->flags, rank, other->what, other->flags);
        if (!offers[rank].ready)
            return tpi_comm_no_memory(ctx, comm, rank, "a plan's board");
    }
    return TP_OK;
}

static tp_status create(tp_ctx *ctx, tp_comm *comm, const tpi_board_desc *desc, tpi_board **out)
{
    *out = NULL;
    tpi_thread_comm *own = comm->state;
    tp_world *world = own->group->world;
    thread_board *board = tpi_host_allocate(ctx, handle_bytes(desc->lanes));
    offer mine = {.shared = comm->rank == 0 ? shared_create(world, comm->size, desc) : NULL, .desc = *desc},
          offers[TPI_MAX_RANKS];
    mine.ready = board && (comm->rank != 0 || mine.shared);
    tp_status status = agree(ctx, comm, &mine, offers);
    if (status != TP_OK) {
        if (board)
            tpi_host_release(ctx, board, handle_bytes(desc->lanes));
        /* A refusal is everybody's; after a failure a peer may know the block already, and the world frees it. */
        if (mine.shared && tp_ctx_failure(ctx) == TP_OK) {
            atomic_store(&mine.shared->holders, 1);
            shared_release(mine.shared);
        }
        return status;
    }
    board->base = (tpi_board){&tpi_board_threads, comm};
    board->shared = offers[0].shared;
    board->lanes = desc->lanes;
    snprintf(board->what, sizeof board->what, "%s", desc->what);
    for (int lane = 0; lane < desc->lanes; lane++) {
        int limit = lane == 0 ? world->spin_limit : tpi_world_lane_spins(world, ctx); /* the first is compute */
        board->spin[lane] = (tpi_spin){.limit = limit, .turns = limit};
    }
    *out = &board->base;
    return TP_OK;
}

static void destroy(tp_ctx *ctx, tpi_board *base)
{
    thread_board *board = (thread_board *)base;
    if (!board)
        return;
    tpi_shared_board *shared = board->shared;
    if (shared->world->single_use) {
        /* Whoever waits for this rank is told instead of waiting for its bound. */
        atomic_store(&shared->seat[base->comm->rank].gone, 1);
        for (int rank = 0; rank < shared->size; rank++)
            tpi_word_advance(&shared->seat[rank].bell);
    }
    shared_release(shared);
    tpi_host_release(ctx, board, handle_bytes(board->lanes));
}

static tpi_shared_board *shared_of(const tpi_board *base)
{
    return ((const thread_board *)base)->shared;
}

static void *page(const tpi_board *base, int rank)
{
    tpi_shared_board *shared = shared_of(base);
    return shared->page + (size_t)rank * shared->page_stride;
}

static board_flag *flag_of(const tpi_shared_board *shared, int rank, int flag)
{
    return &shared->flag[(size_t)rank * (size_t)shared->flags + (size_t)flag];
}

static void raise_flag(tpi_board *base, int flag, unsigned epoch, int64_t stamp, const int *peer, int peers)
{
    tpi_shared_board *shared = shared_of(base);
    board_flag *own = flag_of(shared, base->comm->rank, flag);
    atomic_store_explicit(&own->stamp, stamp, memory_order_relaxed);
    atomic_store(&own->epoch, epoch);
    for (int i = 0; i < peers; i++)
        tpi_word_advance(&shared->seat[peer[i]].bell);
}

static tp_status timed_out(const tpi_board *base, const tpi_board_wait *wait)
{
    const tpi_call call = tpi_call_begin(base->comm, "plan", 0);
    const char *plan = ((const thread_board *)base)->what;
    int rank = call.group->seats[wait->rank].world_rank;
    char awaited[96];
    if (wait->kind == NULL)
        snprintf(awaited, sizeof awaited, "rank %d to begin its run", rank);
    else
        snprintf(awaited, sizeof awaited, "op %d (%s) of rank %d to %s", wait->op, wait->kind, rank,
                 wait->posted ? "post its data" : "be done");
    return tpi_call_fail(&call, TP_ERR_TIMEOUT, "plan %s on a group of %d ranks: rank %d waited %lld ms for %s", plan,
                         call.size, call.seat->world_rank, (long long)tpi_call_timeout_ms(&call), awaited);
}

static bool reached(const board_flag *flag, unsigned epoch)
{
    return (int)(atomic_load_explicit(&flag->epoch, memory_order_acquire) - epoch) >= 0;
}

static void settle(tpi_board *base)
{
    const tpi_shared_board *shared = shared_of(base);
    for (int rank = 0; rank < shared->size; rank++)
        while (rank != base->comm->rank && atomic_load(&shared->seat[rank].touching) > 0)
            sched_yield();
}

static tp_status peer_failed(tpi_board *base)
{
    const tpi_call call = tpi_call_begin(base->comm, "plan", 0);
    settle(base);
    return tpi_call_peer_failed(&call);
}

static tp_status gone(tpi_board *base, int rank)
{
    const tpi_thread_comm *own = base->comm->state;
    char message[TPI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "destroyed its context while others wait in plan %s",
             ((const thread_board *)base)->what);
    tpi_world_abort(own->group->world, own->group->seats[rank].world_rank, TP_ERR_STATE, message);
    return peer_failed(base);
}

static tp_status wait_flag(tpi_board *base, const tpi_board_wait *wait, int64_t *stamp)
{
    thread_board *board = (thread_board *)base;
    board_flag *flag = flag_of(board->shared, wait->rank, wait->flag);
    tpi_word *bell = &board->shared->seat[base->comm->rank].bell;
    int64_t deadline = 0;
    while (!reached(flag, wait->epoch)) {
        /* The bell is read before the flag is looked at again: a raise in between is not slept through. */
        unsigned seen = atomic_load(&bell->value);
        if (seen & 1)
            return peer_failed(base);
        if (reached(flag, wait->epoch))
            break;
        if (atomic_load(&board->shared->seat[wait->rank].gone) && !reached(flag, wait->epoch))
            return gone(base, wait->rank);
        int64_t now = tpi_nanoseconds();
        if (deadline == 0) {
            const tpi_call call = tpi_call_begin(base->comm, "plan", 0);
            deadline = now + tpi_call_timeout_ms(&call) * 1000000;
        }
        if (now >= deadline || !tpi_word_wait(bell, seen, &board->spin[wait->lane], deadline - now))
            return timed_out(base, wait);
    }
    if (stamp != NULL)
        *stamp = atomic_load_explicit(&flag->stamp, memory_order_relaxed);
    return TP_OK;
}

static bool flag_reached(const tpi_board *base, int rank, int flag, unsigned epoch)
{
    return reached(flag_of(shared_of(base), rank, flag), epoch);
}

static tp_status touch(tpi_board *base)
{
    tpi_shared_board *shared = shared_of(base);
    atomic_int *touching = &shared->seat[base->comm->rank].touching;
    /* Either this rank sees the failure here, or whoever settles because of it sees this rank's mark. */
    atomic_fetch_add(touching, 1);
    if (atomic_load(&shared->world->failed) == TP_OK)
        return TP_OK;
    atomic_fetch_sub(touching, 1);
    return peer_failed(base);
}

static void untouch(tpi_board *base)
{
    atomic_fetch_sub_explicit(&shared_of(base)->seat[base->comm->rank].touching, 1, memory_order_release);
}

static int64_t deliver(tpi_board *base, int from, int to, size_t bytes, int64_t stamp)
{
    const tpi_thread_comm *own = base->comm->state;
    if (own->group->world->desc.link.bytes_per_second <= 0)
        return stamp;
    return tpi_link_message(own->group->world, own->group->seats[from].world_rank, own->group->seats[to].world_rank,
                            bytes, stamp);
}

static void sleep_until(tpi_board *base, int64_t stamp)
{
    const tpi_thread_comm *own = base->comm->state;
    if (own->group->world->desc.link.bytes_per_second > 0 && tpi_nanoseconds() < stamp)
        tpi_sleep_until(stamp);
}

const tpi_board_table tpi_board_threads = {
    .create = create,
    .destroy = destroy,
    .page = page,
    .raise = raise_flag,
    .wait = wait_flag,
    .reached = flag_reached,
    .touch = touch,
    .untouch = untouch,
    .settle = settle,
    .deliver = deliver,
    .sleep_until = sleep_until,
};
