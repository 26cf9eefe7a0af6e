/* One operation of one rank on a group of thread ranks: posts, gates, failures. */
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#include "comm/threads.h"

#define NANOSECONDS_PER_MS ((int64_t)1000000)
/* Thirty years. */
#define LONGEST_TIMEOUT_MS ((int64_t)1000000000000)

/* Who a communicator is for is known when it has been made. */
tpi_spin *tpi_call_spin(const tpi_call *call)
{
    tpi_spin *spin = &call->own->spin;
    if (call->own->comm.beside && spin->waits == 0)
        spin->limit = spin->turns = tpi_world_lane_spins(call->group->world, call->ctx);
    return spin;
}

int64_t tpi_call_timeout_ms(const tpi_call *call)
{
    int64_t world = call->group->world->desc.timeout_ms, own = call->ctx->desc.timeout_ms;
    int64_t bound = own > 0 && own < world ? own : world;
    return bound < LONGEST_TIMEOUT_MS ? bound : LONGEST_TIMEOUT_MS;
}

bool tpi_touch_begin(const tpi_call *call)
{
    /* Either this rank sees the failure here, or whoever leaves because of it sees this rank's mark: the fence between
     * mark and look is passed here, or, where that costs something at every call, is had passed by whoever leaves. */
    if (call->group->flagged) {
        atomic_store_explicit(&call->seat->touching, 1, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst);
    } else {
        atomic_store(&call->seat->touching, 1);
    }
    if (atomic_load(&call->group->world->failed) == TP_OK)
        return true;
    atomic_store(&call->seat->touching, 0);
    return false;
}

void tpi_touch_end(const tpi_call *call)
{
    atomic_store_explicit(&call->seat->touching, 0, memory_order_release);
}

/* Peers that are inside a touching stretch finish it without waiting for anyone, so this ends soon. In device order
 * this rank may be in one itself: it ends when what was issued is done. */
static void wait_until_untouched(const tpi_call *call)
{
    if (call->stream) {
        call->ctx->backend->stream_synchronize(call->stream);
        tpi_touch_end(call);
    }
    if (call->group->flagged)
        tpi_fence_all();
    for (int rank = 0; rank < call->size; rank++)
        while (atomic_load(&call->group->seats[rank].touching))
            sched_yield();
}

tp_status tpi_call_peer_failed(const tpi_call *call)
{
    tp_world *world = call->group->world;
    char message[TPI_MESSAGE_BYTES];
    pthread_mutex_lock(&world->lock);
    tp_status status = (tp_status)atomic_load(&world->failed);
    int rank = world->failed_rank;
    snprintf(message, sizeof message, "%s", world->message);
    pthread_mutex_unlock(&world->lock);
    wait_until_untouched(call);
    /* Ranks that called different operations are all told so, whoever saw it first; and who waited in vain is, if
     * another thread of this rank sees that first. */
    if (status == TP_ERR_MISMATCH || (status == TP_ERR_TIMEOUT && rank == call->seat->world_rank))
        return tpi_fail(call->ctx, status, "%s", message);
    return tpi_fail(call->ctx, TP_ERR_PEER, "rank %d: %s", rank, message);
}

tp_status tpi_call_peer_gone(const tpi_call *call, int rank)
{
    char message[TPI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "destroyed its communicator of %d ranks before rank %d called %s", call->size,
             call->seat->world_rank, call->name);
    tpi_world_abort(call->group->world, call->group->seats[rank].world_rank, TP_ERR_STATE, message);
    return tpi_call_peer_failed(call);
}

tp_status tpi_call_fail(const tpi_call *call, tp_status status, const char *format, ...)
{
    char message[TPI_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    tpi_world_abort(call->group->world, call->seat->world_rank, status, message);
    wait_until_untouched(call);
    return tpi_fail(call->ctx, status, "%s", message);
}

tp_status tpi_call_op_failed(const tpi_call *call, tp_status status)
{
    const char *message = tp_ctx_message(call->ctx);
    return tpi_call_fail(call, status, "%s: %s", call->name, message[0] ? message : tp_status_text(status));
}

tp_status tpi_call_timed_out(const tpi_call *call, const char *detail)
{
    return tpi_call_fail(call, TP_ERR_TIMEOUT, "%s on a group of %d ranks: rank %d waited %" PRId64 " ms, %s",
                         call->name, call->size, call->seat->world_rank, tpi_call_timeout_ms(call), detail);
}

static tp_status gate_timed_out(const tpi_call *call)
{
    unsigned arrived = atomic_load(&call->seat->arrived);
    for (int rank = 0; rank < call->size; rank++) {
        const tpi_seat *seat = &call->group->seats[rank];
        if ((int)(atomic_load(&seat->arrived) - arrived) < 0) {
            char detail[64];
            snprintf(detail, sizeof detail, "rank %d did not come", seat->world_rank);
            return tpi_call_timed_out(call, detail);
        }
    }
    return tpi_call_timed_out(call, "the last rank came too late");
}

static int first_gone(const tpi_group *group)
{
    int rank = 0;
    while (rank < group->size - 1 && !atomic_load(&group->seats[rank].left))
        rank++;
    return rank;
}

/* The last rank to come opens the gate, if all ranks came to the same call. */
static tp_status open_gate(const tpi_call *call, bool same)
{
    tpi_group *group = call->group;
    if (!same)
        TPI_TRY(tpi_check_common(call));
    atomic_store_explicit(&group->waiting, 0, memory_order_relaxed);
    tpi_word_advance(&group->gate);
    return TP_OK;
}

/* What a rank waits for at flags. */
typedef struct flag_wait {
    const tpi_call *call;
    unsigned round;
} flag_wait;

/* A rank that went without coming to this gate, or -1. Who goes looks at all flags after it said so, and who waits
 * looks here after it raised its own: one of the two sees the other. */
static int missing_at(const flag_wait *wait)
{
    const tpi_group *group = wait->call->group;
    for (int rank = 0; rank < group->size && atomic_load(&group->gone) > 0; rank++)
        if (atomic_load(&group->seats[rank].left) && !tpi_flag_reached(&group->flags[rank], wait->round))
            return rank;
    return -1;
}

static bool should_leave(const void *arg)
{
    return missing_at(arg) >= 0;
}

static tp_status wait_at_flag(tpi_call *call, tpi_flag *flag, unsigned round)
{
    const flag_wait wait = {call, round};
    double begin = call->counts ? tpi_seconds() : 0;
    int64_t timeout = tpi_call_timeout_ms(call) * NANOSECONDS_PER_MS;
    bool in_time = tpi_flag_wait(flag, round, tpi_call_spin(call), timeout, should_leave, &wait);
    if (call->counts)
        call->waited += tpi_seconds() - begin;
    if (tpi_flag_reached(flag, round))
        return TP_OK;
    if (atomic_load(&call->group->world->failed) != TP_OK)
        return tpi_call_peer_failed(call);
    int missing = missing_at(&wait);
    if (missing >= 0)
        return tpi_call_peer_gone(call, missing);
    return in_time ? tpi_call_peer_failed(call) : gate_timed_out(call);
}

/* Looks that are cheaper than asking for the time. */
#define QUICK_LOOKS 32

static bool comes_soon(const tpi_flag *flag, unsigned round)
{
    for (int i = 0; i < QUICK_LOOKS; i++) {
        if (tpi_flag_reached(flag, round))
            return true;
        tpi_pause();
    }
    return false;
}

static inline tp_status pass_flags(tpi_call *call, const tpi_post *post, uint32_t fingerprint)
{
    tpi_group *group = call->group;
    if (atomic_load_explicit(&group->gate.value, memory_order_acquire) & 1)
        return tpi_call_peer_failed(call);
    unsigned round = atomic_load_explicit(&call->seat->arrived, memory_order_relaxed) + 1,
             place = call->seat->posts & 1;
    atomic_store_explicit(&call->seat->arrived, round, memory_order_relaxed);
    /* The line's stores side by side: a peer that looks in between takes it away. */
    tpi_flag *own = &group->flags[call->rank];
    if (post) {
        own->in[place] = post->in;
        own->out[place] = post->out;
    }
    own->fingerprint[round & 1] = fingerprint;
    tpi_flag_raise(own, round);
    bool same = true;
    int rank = call->rank;
    for (int i = 1; i < call->size; i++) {
        rank = rank + 1 == call->size ? 0 : rank + 1;
        tpi_flag *flag = &group->flags[rank];
        if (!comes_soon(flag, round))
            TPI_TRY(wait_at_flag(call, flag, round));
        same = same && flag->fingerprint[round & 1] == fingerprint;
    }
    return same ? TP_OK : tpi_check_common(call);
}

/* Who waits at the gate's word finds buffers in its peers' flags too. */
static tp_status pass_word(tpi_call *call, const tpi_post *post, uint32_t fingerprint)
{
    tpi_group *group = call->group;
    if (post) {
        group->flags[call->rank].in[call->seat->posts & 1] = post->in;
        group->flags[call->rank].out[call->seat->posts & 1] = post->out;
    }
    unsigned seen = atomic_load_explicit(&group->gate.value, memory_order_acquire);
    if (seen & 1)
        return tpi_call_peer_failed(call);
    atomic_fetch_add_explicit(&call->seat->arrived, 1, memory_order_relaxed);
    uint64_t before = atomic_fetch_add(&group->waiting, ((uint64_t)fingerprint << 32) + 1);
    if ((int)(uint32_t)before + 1 == call->size)
        return open_gate(call, (uint32_t)(before >> 32) + fingerprint == fingerprint * (uint32_t)call->size);
    /* A rank that goes looks at `waiting` after it said so: one of the two sees the other. One that went after this
     * gate opened is no trouble. */
    if (atomic_load(&group->gone) > 0 && atomic_load(&group->gate.value) == seen)
        return tpi_call_peer_gone(call, first_gone(group));
    int64_t timeout = tpi_call_timeout_ms(call) * NANOSECONDS_PER_MS;
    if (!tpi_word_wait(&group->gate, seen, tpi_call_spin(call), timeout))
        return gate_timed_out(call);
    unsigned now = atomic_load_explicit(&group->gate.value, memory_order_acquire);
    return ((now ^ seen) & ~1u) != 0 ? TP_OK : tpi_call_peer_failed(call);
}

/* post: what this rank says there; NULL: nothing. */
static inline tp_status pass_gate(tpi_call *call, const tpi_post *post, uint32_t fingerprint)
{
    return call->group->flagged ? pass_flags(call, post, fingerprint) : pass_word(call, post, fingerprint);
}

tp_status tpi_call_gate(tpi_call *call)
{
    return pass_gate(call, NULL, 0);
}

static void find_latest(tpi_call *call)
{
    for (int rank = 0; rank < call->size; rank++) {
        int64_t stamp = tpi_call_peer(call, rank)->stamp;
        call->latest = stamp > call->latest ? stamp : call->latest;
    }
}

bool tpi_call_stages_rows(const tpi_call *call, const tpi_collective_args *args)
{
    for (int rank = 0; rank < call->size; rank++) {
        tp_range rows = tpi_comm_range(args->counts, args->rows, call->size, rank);
        if (!tpi_call_stages(call, tpi_comm_bytes((rows.end - rows.begin) * args->cols, args->in_dtype)))
            return false;
    }
    return true;
}

tpi_post tpi_post_of(const tpi_collective_args *args)
{
    return (tpi_post){
        .in = args->in,
        .out = args->out,
        .in_dtype = args->in_dtype,
        .out_dtype = args->out_dtype,
        .rows = args->rows,
        .cols = args->cols,
        .out_rows = args->out_rows,
        .op = -1,
        .root = -1,
        .counts = args->counts,
        .recv_counts = args->recv_counts,
    };
}

tpi_post tpi_post_of_reduction(const tpi_collective_args *args)
{
    tpi_post post = tpi_post_of(args);
    post.op = args->reduce.op;
    post.algorithm = args->reduce.algorithm;
    return post;
}

/* With this rank's post filled in. */
static inline tp_status publish(tpi_call *call, tpi_post *mine)
{
    mine->call = call->name;
    mine->stamp = call->stamp;
    TPI_TRY(pass_gate(call, mine, tpi_post_fingerprint(call, mine)));
    const tp_world_desc *desc = &call->group->world->desc;
    if (desc->check_calls)
        TPI_TRY(tpi_check_posts(call));
    if (desc->link.bytes_per_second > 0)
        find_latest(call);
    return TP_OK;
}

tp_status tpi_call_post(tpi_call *call, const tpi_post *post)
{
    tpi_post *mine = &call->seat->post[call->seat->posts & 1];
    *mine = *post;
    return publish(call, mine);
}

tp_status tpi_call_post_args(tpi_call *call, const tpi_collective_args *args, bool reduces)
{
    tpi_post *mine = &call->seat->post[call->seat->posts & 1];
    mine->in = args->in;
    mine->out = args->out;
    mine->in_dtype = args->in_dtype;
    mine->out_dtype = args->out_dtype;
    mine->rows = args->rows;
    mine->cols = args->cols;
    mine->out_rows = args->out_rows;
    mine->op = reduces ? (int)args->reduce.op : -1;
    mine->root = -1;
    mine->algorithm = reduces ? (int)args->reduce.algorithm : 0;
    mine->exchange = mine->named = false;
    mine->counts = args->counts;
    mine->recv_counts = args->recv_counts;
    return publish(call, mine);
}
