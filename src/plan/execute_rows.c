/* From pieces to rows and addresses. */
#include "plan/execute_state.h"
#include "plan/patterns.h"

tpi_view tpi_view_of(tp_tensor tensor, int64_t first)
{
    return (tpi_view){.data = tensor.data, .dtype = tensor.dtype, .cols = tensor.shape[1], .stride = tensor.stride[0],
                      .first = first};
}

const tpi_job *tpi_run_job(const tpi_run *run)
{
    return &run->job;
}

const tp_plan *tpi_run_plan(const tpi_run *run)
{
    return run->prepared->plan;
}

/* Whether chunks are slices of the columns of INPUT: then all of an owner's pieces have all its rows. */
static bool is_sliced(const tpi_run *run)
{
    return tpi_pattern_is_sliced((tp_pattern)run->prepared->plan->pattern);
}

tp_range tpi_run_columns(const tpi_run *run, int slice)
{
    return tp_shard_range(run->job.view[TP_BUFFER_INPUT].cols, run->prepared->plan->chunks, slice);
}

static tp_range rows_of(const tpi_run *run, int piece)
{
    const tp_plan *plan = run->prepared->plan;
    tp_range owner = tp_shard_range(run->job.tokens, plan->ranks, piece / plan->chunks);
    if (is_sliced(run))
        return owner;
    tp_range rows = tp_shard_range(owner.end - owner.begin, plan->chunks, piece % plan->chunks);
    return (tp_range){owner.begin + rows.begin, owner.begin + rows.end};
}

tp_range tpi_run_rows(const tpi_run *run, int piece, int pieces)
{
    return (tp_range){rows_of(run, piece).begin, rows_of(run, piece + pieces - 1).end};
}

/* Whether consecutive pieces don't lie together in something that the op reads or writes. */
static bool is_scattered(const tpi_run *run, const tp_plan_op *op)
{
    bool scattered = op->step != 1;
    for (int i = 0; i < op->reads; i++)
        scattered = scattered || run->prepared->striped[op->read[i].buffer];
    for (int i = 0; i < op->writes; i++)
        scattered = scattered || run->prepared->striped[op->write[i].buffer];
    return scattered;
}

int tpi_run_segments(const tpi_run *run, const tp_plan_op *op)
{
    return is_scattered(run, op) ? op->pieces : 1;
}

tpi_segment tpi_run_segment(const tpi_run *run, const tp_plan_op *op, int index)
{
    if (!is_scattered(run, op))
        return (tpi_segment){op->piece, tpi_run_rows(run, op->piece, op->pieces)};
    int piece = op->piece + index * op->step;
    return (tpi_segment){piece, rows_of(run, piece)};
}

/* Rows before a piece in order of chunks, then owners. */
static int64_t striped_before(const tpi_run *run, int piece)
{
    const tp_plan *plan = run->prepared->plan;
    int chunk = piece % plan->chunks, owner = piece / plan->chunks;
    int64_t before = 0;
    for (int other = 0; other < plan->ranks; other++) {
        tp_range rows = tp_shard_range(run->job.tokens, plan->ranks, other);
        tp_range part = tp_shard_range(rows.end - rows.begin, plan->chunks, chunk);
        before += other < owner ? part.end : part.begin;
    }
    return before;
}

static int64_t place_of(const tpi_run *run, const tp_region *region, tpi_segment segment, const tpi_view *view)
{
    if (run->prepared->striped[region->buffer])
        return striped_before(run, segment.piece);
    if (region->buffer != TP_BUFFER_INBOX)
        return segment.rows.begin - view->first;
    tp_range own = tp_shard_range(run->job.tokens, run->prepared->plan->ranks, region->rank);
    int slot = region->slot < region->rank ? region->slot : region->slot - 1;
    return slot * (own.end - own.begin) + segment.rows.begin - own.begin;
}

/* The slice's columns of a view of all of them. */
static void take_columns(const tpi_run *run, int piece, tpi_view *view)
{
    tp_range columns = tpi_run_columns(run, piece % run->prepared->plan->chunks);
    if (view->data != NULL)
        view->data = (char *)view->data + (size_t)columns.begin * tp_dtype_size(view->dtype);
    view->cols = columns.end - columns.begin;
}

static bool has_columns(tp_buffer buffer)
{
    return buffer == TP_BUFFER_INPUT || buffer == TP_BUFFER_GATHERED;
}

tpi_view tpi_run_at(const tpi_run *run, const tp_region *region, tpi_segment segment)
{
    bool own = region->rank == run->prepared->rank || run->prepared->board == NULL;
    tpi_view view = own ? run->job.view[region->buffer] : tpi_run_page(run, region->rank)->view[region->buffer];
    if (view.data != NULL)
        view.data = (char *)view.data +
                    (size_t)(place_of(run, region, segment, &view) * view.stride) * tp_dtype_size(view.dtype);
    view.first = segment.rows.begin;
    if (is_sliced(run) && has_columns(region->buffer))
        take_columns(run, segment.piece, &view);
    return view;
}

size_t tpi_run_bytes(const tpi_run *run, const tp_region *region)
{
    const tpi_view *view = &run->job.view[region->buffer]; /* peers' has the same columns */
    bool slices = is_sliced(run) && has_columns(region->buffer);
    int64_t elements = 0;
    for (int i = 0; i < region->pieces; i++) {
        int piece = region->piece + i * region->step;
        tp_range rows = rows_of(run, piece), columns = slices
                                                           ? tpi_run_columns(run, piece % run->prepared->plan->chunks)
                                                           : (tp_range){0, view->cols};
        elements += (rows.end - rows.begin) * (columns.end - columns.begin);
    }
    return (size_t)elements * tp_dtype_size(view->dtype);
}
