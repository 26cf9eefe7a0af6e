/* Inside the thread transport: the world, groups of ranks, and how ranks wait for each other.
 *
 * An operation is a sequence of posts and gates. A post publishes this rank's arguments in its seat and passes the
 * group's gate; after it every rank may read every seat. Few ranks with a core each raise flags at a gate, one line
 * each, and look at each other's; others count themselves in one word, whose last one opens the gate: one sleep each.
 * Seats hold two posts, used in turn: a rank overwrites the older one only when it has passed a later post's gate, that
 * is when all ranks have finished reading it. An operation that reads or writes peers' own buffers ends with a second
 * gate. Small ones go through staging instead, which needs none. Two ranks swap their staging from one such operation
 * to the next: each writes the lines that it was the last to read, which are in its own core's cache; storing into
 * lines that the other core read last costs tens of nanoseconds each.
 *
 * Failure: the first one is recorded in the world, and every waiting word gets its lowest bit, which wakes all. A rank
 * leaving with an error first waits until no peer is inside a stretch that touches other ranks' buffers
 * (tpi_touch_begin / tpi_touch_end; such stretches never wait), so the caller may free its buffers. */
#ifndef TPI_COMM_THREADS_H
#define TPI_COMM_THREADS_H

#include <stdalign.h>

#include "comm/collective.h"

#define TPI_CACHE_LINE 64
/* Bytes of one staging buffer. */
#define TPI_STAGING_BYTES ((size_t)16384)
/* From one staging buffer to the next: not a multiple of a page, so that a rank's stores don't look like stores to what
 * it loads next. */
#define TPI_STAGING_STRIDE (TPI_STAGING_BYTES + 17 * TPI_CACHE_LINE)
/* Messages a channel holds before its sender has to wait for the receiver. */
#define TPI_CHANNEL_DEPTH 2

/* A word to wait on. Bit 0: the world failed. The rest counts. */
typedef struct tpi_word {
    atomic_uint value;
    atomic_uint sleepers;
} tpi_word;

/* What a rank says at a gate, in one line: that it came, to what call, and with which buffers. And whether somebody
 * sleeps on it, which the rank itself looks at: in another line, because peers that look at the first take it out of
 * this core's cache. */
typedef struct tpi_flag {
    alignas(TPI_CACHE_LINE) atomic_uint round; /* bit 0: the world failed. The rest counts this rank's gates; written by
                                                * it alone */
    uint32_t fingerprint[2]; /* by the gate's number */
    const void *in[2];       /* as in the posts */
    void *out[2];
    alignas(TPI_CACHE_LINE) atomic_uint sleepers;
} tpi_flag;

/* How long a rank spins before it sleeps: learnt from wait to wait. */
typedef struct tpi_spin {
    int limit, turns;
    unsigned waits;
} tpi_spin;

/* What a rank tells its peers at a post. */
typedef struct tpi_post {
    const char *call;
    const void *in;
    void *out;
    tp_dtype in_dtype, out_dtype;
    int64_t rows, cols, out_rows;
    int op, root; /* -1: not used by this call */
    int algorithm;
    bool exchange; /* all_to_all: rows are each rank's own */
    bool named;    /* `call` says it all */
    const int64_t *counts, *recv_counts;
    int64_t stamp; /* when it was issued, nanoseconds; only with a modelled link */
    /* Device order: where a stretch of `in` was copied; `in` is ready; this rank is done with its peers' buffers. */
    const void *staging;
    tpi_event *ready, *done;
    tpi_peer_memory *memory; /* one kernel a rank: where peers' kernels find this one's */
} tpi_post;

/* One rank's part of a group. */
typedef struct tpi_seat {
    alignas(TPI_CACHE_LINE) tpi_post post[2];
    unsigned posts;                               /* this rank's own count; its lowest bit picks the post */
    unsigned stagings;                            /* those that went through staging; its lowest bit picks the buffer */
    alignas(TPI_CACHE_LINE) atomic_uint touching; /* inside a stretch that touches other ranks' buffers */
    atomic_uint arrived;                          /* gates reached, for the message of a time-out */
    alignas(TPI_CACHE_LINE) tpi_word bell;        /* rung when a channel of this rank changed */
    int world_rank;
    /* Device order: operations that this rank has issued all of, and so needs no peer's events for; peers that look at
     * this rank's events. */
    atomic_uint passed, users;
    _Atomic(tpi_event *) done; /* behind the last of those operations */
    atomic_uint *halt; /* kernels of this rank that wait for peers look there; under the world's lock; NULL: none */
    atomic_int
        left; /* after a failure, or with the communicator destroyed: touches no peer's symmetric memory any more */
} tpi_seat;

typedef struct tpi_parcel {
    const void *data;
    size_t bytes;
    tp_dtype dtype;
    int64_t stamp;
    bool first;               /* of the sender's batch to this receiver */
    tpi_event *ready, *taken; /* device order: the sender's, of its batch; the receiver's, once it has taken it */
} tpi_parcel;

/* Messages from one rank to another: [taken, posted) are under way. */
typedef struct tpi_channel {
    alignas(TPI_CACHE_LINE) atomic_uint posted;
    atomic_uint taken;
    atomic_uint settled; /* device order: parcels whose `taken` events the sender needs no more */
    tpi_parcel parcel[TPI_CHANNEL_DEPTH];
} tpi_channel;

/* Shared by the ranks of one communicator; freed by the last of them. */
typedef struct tpi_group {
    tp_world *world;
    struct tpi_group *next; /* of the world's groups */
    int size;
    atomic_int holders;
    bool flagged; /* gates are passed by flags */
    tpi_flag *flags;
    tpi_seat *seats;
    tpi_channel *channels;                       /* [from][to] */
    char *pages;                                 /* staging's memory */
    char *staging;                               /* [rank][2][TPI_STAGING_STRIDE]; of two ranks: two buffers, which they
                                                  * swap */
    /* Low half: ranks at the gate. High half: the sum of their posts' fingerprints, which are equal if the calls
     * are. */
    alignas(TPI_CACHE_LINE) atomic_uint_fast64_t waiting;
    atomic_uint gone; /* ranks that destroyed their communicator for good: no gate opens any more */
    alignas(TPI_CACHE_LINE) tpi_word gate;
} tpi_group;

typedef struct tpi_shared_board tpi_shared_board;

/* When a rank's two links are free again, in nanoseconds of the monotonic clock. */
typedef struct tpi_link_state {
    int64_t out_free, in_free;
} tpi_link_state;

typedef struct tpi_rank_device {
    tp_device kind;
    int index;
} tpi_rank_device;

struct tp_world {
    tp_world_desc desc;
    bool single_use; /* a rank has one context only: who destroys it won't come back */
    int cores;
    int spin_limit;
    bool flagged; /* a core for every rank, and the kernel can order sleepers behind flags */
    size_t staged_bytes;  /* up to here an operation goes through staging and saves its second gate; all_reduce is
                             one-shot */
    pthread_mutex_t lock; /* groups, failure text, taken */
    tpi_group *groups;
    tpi_shared_board *boards;
    tpi_group *all;
    bool *taken;       /* [ranks]: a context has this rank */
    tpi_rank_device *device; /* [ranks], of those taken */
    atomic_int failed; /* tp_status of the first failure */
    int failed_rank;
    char message[TPI_MESSAGE_BYTES];
    pthread_mutex_t link_lock;
    tpi_link_state *links; /* [ranks] */
    /* Ranks that are processes: this one's, or NULL. */
    struct tpi_rendezvous *rendezvous;
    int own_rank;
    uint32_t splits; /* that this rank called */
};

typedef struct tpi_device_comm tpi_device_comm;

/* A rank's handle. */
typedef struct tpi_thread_comm {
    tp_comm comm;
    tpi_group *group;
    bool owns_rank; /* of the world's own communicator: gives the rank back */
    tpi_spin spin;
    int64_t link_done; /* when the link model completes this communicator's last operation */
    tpi_device_comm *device; /* in device order, from the first operation on */
} tpi_thread_comm;

/* The scope of a task on a communicator: handle, own seat, and names for messages. */
typedef struct tpi_call {
    tp_ctx *ctx;
    tpi_thread_comm *own;
    tpi_group *group;
    tpi_seat *seat;
    const char *name;
    int rank, size;
    int64_t stamp, latest; /* own, and the latest of all ranks' */
    double waited;         /* seconds, if they count */
    bool counts;
    tpi_stream *stream;    /* device order: what was issued there touches peers' memory until this rank is told to let
                            * go; else NULL */
} tpi_call;

/* Between two looks at what another core writes: looks without a pause hold up its store. */
static inline void tpi_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* wait.c */
void tpi_word_advance(tpi_word *word);
void tpi_word_fail(tpi_word *word);
/* Waits until the word differs from `seen`; false if `timeout` nanoseconds passed before. */
bool tpi_word_wait(tpi_word *word, unsigned seen, tpi_spin *spinning, int64_t timeout);
int64_t tpi_nanoseconds(void);
/* Raises a flag to this round. And looks whether it is there; waits until it is, or the world failed, or `leave` says
 * so: false if `timeout` nanoseconds passed before. Flags work only where tpi_flags_usable. */
bool tpi_flags_usable(void);
/* Where flags are usable: every thread of the process has passed a full fence when this returns. */
void tpi_fence_all(void);
void tpi_flag_wake(tpi_flag *flag);
/* A plain store, so that this rank looks at its peers' flags while its own is still on its way. Sleepers are looked for
 * without a fence: whoever is about to sleep has all threads of the process pass one (membarrier), and then looks
 * again. */
static inline void tpi_flag_raise(tpi_flag *flag, unsigned round)
{
    atomic_store_explicit(&flag->round, round * 2, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&flag->sleepers, memory_order_relaxed) > 0)
        tpi_flag_wake(flag);
}
static inline bool tpi_flag_reached(const tpi_flag *flag, unsigned round)
{
    return (int)(atomic_load_explicit(&flag->round, memory_order_acquire) - round * 2) >= 0;
}
typedef bool (*tpi_flag_leave)(const void *arg);
bool tpi_flag_wait(tpi_flag *flag, unsigned round, tpi_spin *spinning, int64_t timeout, tpi_flag_leave leave,
                   const void *arg);
void tpi_flag_fail(tpi_flag *flag);
void tpi_sleep_until(int64_t nanoseconds);

/* world.c: how long threads beside those that compute spin: where they may have no core of their own, they would hold
 * the one that the compute thread needs, and with it the peer that they wait for. */
int tpi_world_lane_spins(const tp_world *world, const tp_ctx *ctx);

/* group.c */
/* world_ranks NULL: all. Groups that nobody released are freed with the world. */
tpi_group *tpi_group_create(tp_world *world, const int *world_ranks, int size);
void tpi_group_release(tpi_group *group);
void tpi_group_free(tpi_group *group);
/* Wakes everybody who waits in the group, now and later. */
void tpi_group_fail(tpi_group *group);

/* threads_board.c: wakes everybody who waits on any of these boards; frees those that nobody released. */
void tpi_shared_boards_fail(tpi_shared_board *first);
void tpi_shared_boards_free(tpi_shared_board *first);

/* What a rank posts of a collective, and of one that reduces. */
tpi_post tpi_post_of(const tpi_collective_args *args);
tpi_post tpi_post_of_reduction(const tpi_collective_args *args);

/* call.c; what every operation passes is inline: a small one takes a quarter of a microsecond. */
static inline tpi_call tpi_call_begin(tp_comm *comm, const char *name, int64_t stamp)
{
    tpi_thread_comm *own = comm->state;
    /* With a modelled link a communicator's operations follow each other in modelled time too. */
    int64_t ready = stamp > own->link_done ? stamp : own->link_done;
    return (tpi_call){
        .ctx = comm->ctx,
        .own = own,
        .group = own->group,
        .seat = &own->group->seats[comm->rank],
        .name = name,
        .rank = comm->rank,
        .size = comm->size,
        .stamp = ready,
        .latest = ready,
    };
}

/* How its waits spin. */
tpi_spin *tpi_call_spin(const tpi_call *call);

/* Where the argument pointers of rank p are after a post. */
static inline const tpi_post *tpi_call_peer(const tpi_call *call, int rank)
{
    return &call->group->seats[rank].post[call->seat->posts & 1];
}

/* The same for the buffers alone, out of the line that said that the rank came. */
static inline const void *tpi_call_in(const tpi_call *call, int rank)
{
    return call->group->flags[rank].in[call->seat->posts & 1];
}

static inline void *tpi_call_out(const tpi_call *call, int rank)
{
    return call->group->flags[rank].out[call->seat->posts & 1];
}

static inline char *tpi_call_staging(const tpi_call *call, int rank)
{
    unsigned turn = call->seat->stagings & 1;
    size_t place = call->size == 2 ? ((unsigned)rank + turn) & 1 : (unsigned)rank * 2 + turn;
    return call->group->staging + place * TPI_STAGING_STRIDE;
}

/* Two ranks with a core each: up to here staging is faster than two gates. */
#define TPI_PAIR_STAGED_BYTES ((size_t)8192)

/* Whether a buffer of so many bytes goes through staging: the same answer on all ranks. */
static inline bool tpi_call_stages(const tpi_call *call, size_t bytes)
{
    return bytes <=
           (call->size == 2 && call->group->flagged ? TPI_PAIR_STAGED_BYTES : call->group->world->staged_bytes);
}

/* Whether every rank's rows do. */
bool tpi_call_stages_rows(const tpi_call *call, const tpi_collective_args *args);

/* Turns to the other post, and to staging that nobody reads any more. Then tpi_call_post publishes it and passes the
 * gate; from then on a peer may write this rank's own staging. */
static inline void tpi_call_next(tpi_call *call)
{
    call->seat->posts++;
}

static inline void tpi_call_next_staged(tpi_call *call)
{
    call->seat->posts++;
    call->seat->stagings++;
}

tp_status tpi_call_post(tpi_call *call, const tpi_post *post);
/* The same for a collective, or one that reduces, written where it is read: copies of what was just written wait for
 * it. */
tp_status tpi_call_post_args(tpi_call *call, const tpi_collective_args *args, bool reduces);
tp_status tpi_call_gate(tpi_call *call);
bool tpi_touch_begin(const tpi_call *call);
void tpi_touch_end(const tpi_call *call);
/* What a rank returns once the world has failed. */
tp_status tpi_call_peer_failed(const tpi_call *call);
/* The peer destroyed its communicator, which this call waits for. */
tp_status tpi_call_peer_gone(const tpi_call *call, int rank);
/* A failure of this rank: recorded, peers woken, own buffers no longer touched by anyone afterwards. */
tp_status tpi_call_fail(const tpi_call *call, tp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A backend op inside this call failed. */
tp_status tpi_call_op_failed(const tpi_call *call, tp_status status);
int64_t tpi_call_timeout_ms(const tpi_call *call);
/* A wait of this call ran past its bound; `detail` says for what. */
tp_status tpi_call_timed_out(const tpi_call *call, const char *detail);

/* threads_check.c */
uint64_t tpi_post_mix_counts(uint64_t state, const tpi_call *call, const tpi_post *post);
/* A number of what all ranks must have in common. */
static inline uint32_t tpi_post_fingerprint(const tpi_call *call, const tpi_post *post)
{
    uint64_t small = (uint64_t)post->in_dtype | (uint64_t)post->out_dtype << 8 | (uint64_t)(post->op + 1) << 16 |
                     (uint64_t)post->algorithm << 24 | (uint64_t)(post->root + 1) << 32;
    /* A call's name is the same string on all ranks, but for one that says it all. Each number by a factor of its own:
     * none waits for another. */
    uintptr_t name = post->named ? 0 : (uintptr_t)post->call;
    uint64_t rows = post->exchange ? 0 : (uint64_t)post->rows;
    uint64_t sum = name * 0x9e3779b97f4a7c15u + small * 0xbf58476d1ce4e5b9u + rows * 0x94d049bb133111ebu +
                   (uint64_t)post->cols * 0xd6e8feb86659fd93u;
    uint64_t state = sum ^ sum >> 32;
    if (post->counts && !post->exchange)
        state = tpi_post_mix_counts(state, call, post);
    return (uint32_t)(state >> 8);
}
/* For the last rank at a gate, when fingerprints differ: TP_ERR_MISMATCH names two ranks and their calls. */
tp_status tpi_check_common(const tpi_call *call);
/* A checking world's comparison of the posts of all ranks, by all of them. */
tp_status tpi_check_posts(tpi_call *call);

/* link.c: nothing without a modelled link. */
static inline bool tpi_link_modelled(const tp_world *world)
{
    return world->desc.link.bytes_per_second > 0;
}
/* Completes a collective in which this rank sends and receives so many bytes in so many dependent steps: sleeps until
 * the link would have. */
void tpi_link_crossed(tpi_call *call, size_t sent, size_t received, int steps);
static inline void tpi_link_collective(tpi_call *call, size_t sent, size_t received, int steps)
{
    if (tpi_link_modelled(call->group->world) && call->size > 1)
        tpi_link_crossed(call, sent, received, steps);
}
/* Enters a message of world ranks into both links' schedules; when it has arrived, in nanoseconds. */
int64_t tpi_link_message(tp_world *world, int from, int to, size_t bytes, int64_t stamp);
/* Sleeps until `done` and remembers it as this communicator's latest completion. */
void tpi_link_complete(tpi_call *call, int64_t done);

/* threads_reduce.c, threads_copy.c, threads_p2p.c: what runs on the stream. */
tp_status tpi_threads_all_reduce(tpi_call *call, const tpi_collective_args *args);
tp_status tpi_threads_reduce_scatter(tpi_call *call, const tpi_collective_args *args);
tp_status tpi_threads_all_gather(tpi_call *call, const tpi_collective_args *args);
tp_status tpi_threads_broadcast(tpi_call *call, const tpi_collective_args *args);
tp_status tpi_threads_all_to_all(tpi_call *call, const tpi_collective_args *args);
tp_status tpi_threads_p2p(tpi_call *call, const tp_p2p *ops, int count);

/* threads_split.c */
tp_status tpi_threads_split(tp_ctx *ctx, tp_comm *comm, int color, int key, tp_comm **out);
tp_status tpi_threads_exchange(tp_ctx *ctx, tp_comm *comm, const void *mine, void *all, size_t bytes);

/* threads_device.c, threads_device_p2p.c: the same operations in device order (docs/cuda.md, section 3): ranks wait for
 * each other when they issue, and streams for events. */
typedef enum tpi_device_body {
    TPI_DEVICE_ALL_REDUCE = 0,
    TPI_DEVICE_REDUCE_SCATTER,
    TPI_DEVICE_ALL_GATHER,
    TPI_DEVICE_BROADCAST,
    TPI_DEVICE_ALL_TO_ALL,
    TPI_DEVICE_BARRIER
} tpi_device_body;
tp_status tpi_device_collective(tpi_stream *stream, const char *name, tpi_device_body body,
                                const tpi_collective_args *args);
tp_status tpi_device_p2p(tpi_stream *stream, const tpi_p2p_args *args);

/* Whether an all-reduce that is not one kernel goes by way of staging: one-shot. */
bool tpi_device_stages(const tpi_collective_args *args);

/* threads_device_state.c: what device order needs besides. */
#define TPI_DEVICE_STAGING_BYTES ((size_t)262144)
struct tpi_device_comm {
    tpi_event *ready[2]; /* used in turn, like a seat's posts */
    tpi_event *done;     /* behind the last operation's reads and writes of peers' buffers */
    tpi_event *taken[TPI_MAX_RANKS]; /* p2p: by sender; NULL until used */
    char *staging;       /* [2][TPI_DEVICE_STAGING_BYTES] of device memory, in turn by `stagings`; NULL until used */
    unsigned stagings;   /* uses of it: not posts, as not behind each of these all streams have met */
    unsigned ops, shared; /* begun; the last one that all ranks came to */
    tpi_pointer_ring arrays;
    tpi_peer_memory *memory; /* of device memory; NULL until used */
    atomic_uint *halt;       /* of shared memory, with it */
};
tp_status tpi_device_comm_get(const tpi_call *call, tpi_device_comm **out);
/* Waits until no peer needs what is freed. */
void tpi_device_comm_free(tp_ctx *ctx, tpi_thread_comm *own);

/* threads_peer.c: an all-reduce in one kernel a rank. */
/* Whether one of so many ranks that reach each other and have a device each is done so. */
bool tpi_peers_suit(int size, const tpi_collective_args *args);
/* Whether this one is done so: the same answer on all ranks. */
bool tpi_peers_reduce(const tpi_call *call, const tpi_collective_args *args);
/* Makes what that needs, posts it, and issues the kernel. */
tp_status tpi_peers_all_reduce(tpi_call *call, tpi_device_comm *device, const tpi_collective_args *args);
/* Kernels of the group that wait for peers give up. Under the world's lock. */
void tpi_peers_halt(tpi_group *group);
void tpi_peers_free(tp_ctx *ctx, tpi_thread_comm *own);

/* threads.c: a handle without a group yet; NULL if there is no memory. */
tpi_thread_comm *tpi_threads_handle(tp_ctx *ctx, int rank, int size);
void tpi_threads_handle_free(tp_ctx *ctx, tpi_thread_comm *own);
void tpi_threads_handle_join(tpi_thread_comm *own, tpi_group *group);

/* A batch of sends and receives under way: what both orders of p2p share (threads_batch.c). */
typedef struct tpi_batch {
    tpi_call *call;
    const tp_p2p *ops;
    int count;
    int send[TPI_MAX_RANKS], receive[TPI_MAX_RANKS]; /* next op of the array for this peer; count: none left */
} tpi_batch;

tpi_batch tpi_batch_begin(tpi_call *call, const tp_p2p *ops, int count);
int tpi_batch_next(const tpi_batch *batch, bool send, int peer, int from);
tpi_channel *tpi_batch_channel(const tpi_batch *batch, int from, int to);
/* Posts what the channel to this peer has room for; parcels are like `parcel`, with each op's data. True if any was
 * posted. */
bool tpi_batch_post(tpi_batch *batch, int peer, tpi_parcel parcel);
/* The next receive from this peer is of the parcel's size, else a failure that names both. */
tp_status tpi_batch_check(const tpi_batch *batch, int peer, const tpi_parcel *parcel);
/* Whether this peer is to send or to receive still; whom that holds for, and who has destroyed its communicator: -1:
 * nobody. */
bool tpi_batch_needs(const tpi_batch *batch, int peer);
int tpi_batch_gone(const tpi_batch *batch);
/* How an order does it: what posted parcels are like, and taking one that was checked, in a stretch that touches the
 * sender's memory. */
typedef struct tpi_batch_way {
    tpi_parcel parcel;
    tp_status (*take)(tpi_batch *batch, int peer, tpi_parcel *parcel);
} tpi_batch_way;
/* Does whatever the channels allow, in any order among peers, until all is done. */
tp_status tpi_batch_progress(tpi_batch *batch, const tpi_batch_way *way);

#endif
