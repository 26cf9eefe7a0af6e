/* Inside the executor: a context's lanes, prepared plans, and runs of them. */
#ifndef TPI_EXECUTE_STATE_H
#define TPI_EXECUTE_STATE_H

#include <tp/trace.h>

#include "plan/execute_site.h"

/* Runs of one plan whose ops may be issued and not done: more than one only where the compute stream is a lane. */
#define TPI_RUN_SLOTS 4

/* What preparing found out about one of this rank's ops. */
typedef struct tpi_op_note {
    bool touches;     /* reads or writes peers' memory */
    bool looks;       /* waits for another rank */
    bool recorded;    /* another lane waits for it */
    tpi_event *event; /* then; else NULL. Where streams run behind: also if other ranks wait for it, or it touches their
                       * memory */
    tpi_event *posted; /* SEND, where streams run behind: its data is there */
    uint64_t waiters; /* ranks that wait for it, as bits */
    int peers, *peer; /* and as a list */
    int partner;      /* SEND, RECV: the op it meets */
    bool follows;     /* SEND, where streams run behind: it need not wait for the end of the one before it. RECV: its
                       * data is there with the one before */
    int first_pointer; /* REDUCE: of its reads and writes in the run's pointers */
    int first_count;   /* COLLECTIVE: rows a rank, in the run's counts; -1: all rows */
} tpi_op_note;

struct tpi_run {
    tpi_prepared *prepared;
    tpi_job job;
    unsigned epoch; /* 1 for the plan's first run */
    atomic_int busy;
    bool traced;
    void **pointer;
    int64_t *count;
    int64_t *stamp;                /* [ops]: when each was done, for the modelled link */
    int64_t lane_ready[TP_LANES];  /* when everything that the lane has waited for was there */
    bool lane_touching[TP_LANES];
    int next_message;              /* in order of the groups */
    int sending[TP_LANES];         /* where streams run behind: 1 + the lane's send whose end is not awaited yet; 0:
                                    * none */
    double lane_begin[TP_LANES];   /* of the op under way, for the trace */
    double moving_since;           /* compute's transfer under way */
};

/* A send or receive that is issued in a group. */
typedef struct tpi_grouped {
    int op, level; /* one level is one group */
    int issued;    /* with this op of the list */
} tpi_grouped;

/* By level. */
typedef struct tpi_messages {
    int count;
    tpi_grouped *message; /* NULL: messages are flags and copies on a board */
} tpi_messages;

/* Most messages of one group. */
#define TPI_GROUP_MESSAGES (2 * TP_PLAN_MAX_RANKS)

#define TPI_PLAN_TEXT 112

typedef struct tpi_piece_span {
    int begin, end;
} tpi_piece_span;

struct tpi_prepared {
    tpi_prepared *next; /* of the context's */
    tp_ctx *ctx;
    tp_comm *comm, *lane_comm; /* compute lane's and other lanes' collectives */
    tp_plan_desc desc;         /* that tpi_plan_get was asked for */
    tp_plan *own;              /* made here; NULL: borrowed */
    const tp_plan *plan;
    const tp_plan_rank *list;
    int rank;
    bool uses[TP_LANES];
    bool forks[TP_LANES], joins[TP_LANES]; /* lanes beside compute whose begin, or end, no wait of the plan orders */
    int last[TP_LANES];                    /* op of each */
    bool ahead; /* the compute stream is a lane: ops are issued before what they wait for is there */
    bool behind; /* ranks wait for each other when they issue: execute_behind.c */
    bool held;          /* then: peers' events are shared */
    tpi_event **event;  /* then: [ranks][flags], and one row more */
    size_t event_bytes;
    bool agrees;             /* a checking world's: ranks compare what they run first (execute_agree.c) */
    bool moves[TP_BUFFERS];  /* some rank's op moves it between ranks */
    char what[TPI_PLAN_TEXT]; /* then: the run that is compared, in words */
    bool dense[TP_BUFFERS];            /* what is done with its rows needs them to lie together (execute_dense.c) */
    tpi_piece_span span[TP_BUFFERS];   /* of this rank's buffer: all pieces that ops name; end 0: none */
    bool striped[TP_BUFFERS]; /* pieces lie in order of chunks, then owners, so that a chunk's collective is dense */
    tpi_messages messages; /* of ranks that don't reach each other's memory */
    int flags;  /* a rank */
    tpi_board *board; /* NULL: no op looks at another rank */
    tpi_op_note *note;
    unsigned runs;
    tpi_run slot[TPI_RUN_SLOTS];
    void *memory;
    size_t bytes;
};

/* A communicator for lanes beside the compute stream. */
typedef struct tpi_lane_comm {
    struct tpi_lane_comm *next;
    tp_comm *group, *comm;
} tpi_lane_comm;

/* Choices of AUTO for one shape, and the plans they take. */
struct tpi_auto {
    tpi_auto *next;
    tp_comm *comm;
    tp_overlap_shape shape;
    tp_overlap_table table;
    tpi_prepared *plan[TP_OVERLAP_CLASSES];
};

/* What a run worked on, for who prices it: rows are the job's tokens. */
typedef struct tpi_run_note {
    const tp_plan *plan;
    int64_t tokens;
    tp_dtype dtype;
    int64_t cols[TP_BUFFERS]; /* of its views */
} tpi_run_note;

struct tpi_executor {
    tpi_stream *lane[TP_LANES]; /* COMPUTE: the context's; others NULL until a plan uses them */
    tpi_event *fork, *join[TP_LANES];
    tpi_lane_comm *comms;
    tpi_prepared *prepared;
    tpi_auto *autos;
    tp_trace_span *trace; /* NULL: off */
    int64_t trace_capacity;
    atomic_llong traced;
    tpi_run_note *notes; /* NULL: off */
    int note_capacity, noted;
};

/* Flags of op `op`: it is done; SEND: its data is there. After all ops': the run's addresses are on the page. */
int tpi_flag_done(int op);
int tpi_flag_posted(int op);
int tpi_flag_shown(const tpi_prepared *prepared);

/* What a rank shows of one run. */
typedef struct tpi_page {
    int64_t tokens;
    tpi_view view[TP_BUFFERS];
} tpi_page;
tpi_page *tpi_run_page(const tpi_run *run, int rank);

/* execute_prepare.c: the op that a message meets on the other side. */
int tpi_partner_of(const tp_plan *plan, int rank, int index);
tp_status tpi_executor_get(tp_ctx *ctx, struct tpi_executor **out);

/* execute_agree.c: whether runs are compared, and of which buffers; compares one, in stream order, before anything
 * moves. */
void tpi_agree_prepare(tpi_prepared *p);
tp_status tpi_agree(tpi_run *run);

/* execute_dense.c: which buffers need dense rows; puts copies in scratch where the caller's are not, *output being the
 * caller's view if OUTPUT is one (data NULL: it is not); copies that back, on the compute stream. */
void tpi_dense_prepare(tpi_prepared *p);
tp_status tpi_dense_begin(tpi_run *run, tpi_view *output);
tp_status tpi_dense_end(const tpi_run *run, const tpi_view *output);

/* execute.c: a wait of one of this rank's lanes, or of its issuing thread (TP_LANES), for another rank's flag. */
tpi_board_wait tpi_wait_of(const tpi_run *run, int lane, int rank, int flag);

/* execute.c: issues an op by its kind; waits until the addresses that it needs are shown; checks that those ranks run
 * it for the same tokens, columns and dtypes. */
tp_status tpi_call_issue(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op);
tp_status tpi_see_pages(const tpi_run *run, const tp_plan_op *op);
tp_status tpi_check_pages(const tpi_run *run, const tp_plan_op *op);

/* execute_behind.c: preparing, issuing all ops, and, after a failure and own lanes' end, waiting for what peers do in
 * this rank's memory. The board must be there; issuing works without one. */
tp_status tpi_behind_prepare(tpi_prepared *p);
void tpi_behind_free(tpi_prepared *p);
tp_status tpi_behind_issue(tpi_run *run);
/* Whether compute has waited for all of the lane already: this rank's LEAVE does something, and so has waits of its
 * own. */
bool tpi_behind_left(const tpi_run *run, tp_lane lane);
void tpi_behind_settle(const tpi_run *run);

/* execute_messages.c: whether a plan's ranks have nothing in common but messages; this rank's in groups; all on one
 * lane; what is to be issued once op `index` was come to. */
bool tpi_messages_suffice(const tp_plan *plan);
tp_status tpi_messages_find(tp_ctx *ctx, const tp_plan *plan, int rank, tpi_messages *out);
void tpi_messages_free(tp_ctx *ctx, tpi_messages *messages);
void tpi_messages_share_lane(tp_plan *plan);
tp_status tpi_messages_issue(tpi_run *run, int index);

/* execute_ops.c: kinds that need no callback, and rows of views. Where global row `row` lies; NULL: the view has no
 * memory. */
void *tpi_view_row(const tpi_view *view, int64_t row);
tpi_map_args tpi_rows_copied(const tpi_view *to, const tpi_view *from, int64_t rows);
tp_status tpi_issue_transfer(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op);
tp_status tpi_issue_reduce(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op);
tp_status tpi_issue_collective(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op);
/* Whether this op, which gives all of OUTPUT at once, does the job's norm as well. */
bool tpi_op_norms(const tpi_run *run, const tp_plan_op *op);
/* Rows of a region, which lie together, as a tensor. Slices of columns are all there. */
tp_tensor tpi_run_tensor(const tpi_run *run, const tp_region *region);
/* Bytes of a region in this run. */
size_t tpi_run_bytes(const tpi_run *run, const tp_region *region);

#endif
