#include "plan/builder.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "plan/memory.h"

/* An emitted op with its place. Its regions and its clock are in the same block of memory. */
typedef struct built_op {
    tp_plan_op op;   /* without waits */
    int sequence;    /* in emission order */
    int rank, index; /* in its rank's list */
    int place;       /* in its lane */
    int waits, wait_capacity;
    struct built_op **wait;
    struct built_op *before;    /* on the same lane */
    struct built_op *next_send; /* SEND: the next one between the same two ranks */
    int *clock; /* ops of each lane (rank * TP_LANES + lane) known to be finished before this one begins */
} built_op;

/* Who touched a piece last. */
typedef struct cell {
    built_op *writer;
    int readers, capacity;
    built_op **reader;
} cell;

struct tpi_builder {
    tp_plan_desc desc;
    tp_status status;
    int count, capacity;
    built_op **op; /* emission order */
    int listed[TP_PLAN_MAX_RANKS];
    built_op *last[TP_PLAN_MAX_RANKS][TP_LANES];
    built_op *send[TP_PLAN_MAX_RANKS][TP_PLAN_MAX_RANKS]; /* [from][to]: the first that no RECV has met yet */
    built_op *last_send[TP_PLAN_MAX_RANKS][TP_PLAN_MAX_RANKS];
    size_t cells; /* of one rank */
    cell *cell;   /* every piece of every buffer; INBOX has one a slot too */
};

tp_status tpi_builder_create(const tp_plan_desc *desc, tpi_builder **out)
{
    *out = NULL;
    tpi_builder *builder = calloc(1, sizeof *builder);
    if (builder == NULL)
        return tpi_message(TP_ERR_MEMORY, "plan builder: out of memory");
    builder->desc = *desc;
    size_t pieces = (size_t)desc->ranks * (size_t)desc->chunks;
    builder->cells = pieces * (TP_BUFFERS - 1 + (size_t)desc->ranks);
    builder->cell = calloc(builder->cells * (size_t)desc->ranks, sizeof *builder->cell);
    if (builder->cell == NULL) {
        free(builder);
        return tpi_message(TP_ERR_MEMORY, "plan builder: out of memory");
    }
    *out = builder;
    return TP_OK;
}

void tpi_builder_destroy(tpi_builder *builder)
{
    if (builder == NULL)
        return;
    for (int i = 0; i < builder->count; i++) {
        free(builder->op[i]->wait);
        free(builder->op[i]);
    }
    for (size_t i = 0; i < builder->cells * (size_t)builder->desc.ranks; i++)
        free(builder->cell[i].reader);
    free(builder->cell);
    free(builder->op);
    free(builder);
}

const tp_plan_desc *tpi_builder_desc(const tpi_builder *builder)
{
    return &builder->desc;
}

/* Makes room for one more element; false without memory. */
static bool grow(void **array, int count, int *capacity, size_t size)
{
    if (count < *capacity)
        return true;
    int wanted = *capacity ? 2 * *capacity : 8;
    void *larger = realloc(*array, (size_t)wanted * size);
    if (larger == NULL)
        return false;
    *array = larger;
    *capacity = wanted;
    return true;
}

static bool has_peer(tp_op_kind kind)
{
    return kind == TP_OP_SEND || kind == TP_OP_RECV || kind == TP_OP_PULL || kind == TP_OP_PUSH;
}

/* NULL without memory. */
static built_op *copy_emitted(const tpi_builder *builder, const tpi_emit *emit)
{
    size_t clocks = (size_t)builder->desc.ranks * TP_LANES, regions = (size_t)(emit->reads + emit->writes);
    built_op *op = calloc(1, sizeof *op + clocks * sizeof(int) + regions * sizeof(tp_region));
    if (op == NULL)
        return NULL;
    op->clock = (int *)(void *)(op + 1);
    tp_region *region = (tp_region *)(void *)(op->clock + clocks);
    op->op = (tp_plan_op){.kind = emit->kind,
                          .lane = emit->lane,
                          .part = emit->part,
                          .piece = emit->unit.piece,
                          .pieces = emit->unit.pieces,
                          .step = emit->unit.step,
                          .peer = has_peer(emit->kind) ? emit->peer : -1,
                          .collective = emit->collective,
                          .reads = emit->reads,
                          .writes = emit->writes,
                          .read = region,
                          .write = region + emit->reads};
    memcpy(op->op.read, emit->read, (size_t)emit->reads * sizeof *region);
    memcpy(op->op.write, emit->write, (size_t)emit->writes * sizeof *region);
    return op;
}

static void queue_send(tpi_builder *builder, built_op *send)
{
    built_op **first = &builder->send[send->rank][send->op.peer],
             **last = &builder->last_send[send->rank][send->op.peer];
    if (*first == NULL)
        *first = send;
    else
        (*last)->next_send = send;
    *last = send;
}

void tpi_builder_add(tpi_builder *builder, int rank, const tpi_emit *emit)
{
    built_op *op = copy_emitted(builder, emit);
    void *list = builder->op;
    if (op == NULL || !grow(&list, builder->count, &builder->capacity, sizeof *builder->op)) {
        free(op);
        builder->status = TP_ERR_MEMORY;
        return;
    }
    builder->op = list;
    op->sequence = builder->count;
    op->rank = rank;
    op->index = builder->listed[rank]++;
    op->before = builder->last[rank][emit->lane];
    op->place = op->before ? op->before->place + 1 : 0;
    builder->last[rank][emit->lane] = op;
    builder->op[builder->count++] = op;
    if (emit->kind == TP_OP_SEND)
        queue_send(builder, op);
}

static int lane_of(const built_op *op)
{
    return op->rank * TP_LANES + (int)op->op.lane;
}

static void join(const tpi_builder *builder, built_op *op, const built_op *done)
{
    for (int lane = 0; lane < builder->desc.ranks * TP_LANES; lane++)
        if (op->clock[lane] < done->clock[lane])
            op->clock[lane] = done->clock[lane];
    if (op->clock[lane_of(done)] < done->place + 1)
        op->clock[lane_of(done)] = done->place + 1;
}

static bool known(const built_op *op, const built_op *done)
{
    return op->clock[lane_of(done)] > done->place;
}

/* Remembers a dependency. */
static bool depend(built_op *op, built_op *on)
{
    if (on == NULL || on == op)
        return true;
    void *list = op->wait;
    if (!grow(&list, op->waits, &op->wait_capacity, sizeof *op->wait))
        return false;
    op->wait = list;
    op->wait[op->waits++] = on;
    return true;
}

static cell *cell_of(tpi_builder *builder, const tp_region *region, int index)
{
    size_t pieces = (size_t)builder->desc.ranks * (size_t)builder->desc.chunks;
    size_t piece = (size_t)(region->piece + index * region->step);
    size_t plane = region->buffer; /* INBOX slots come after all buffers */
    if (region->buffer == TP_BUFFER_INBOX && region->slot > 0)
        plane = TP_BUFFERS - 1 + (size_t)region->slot;
    return &builder->cell[(size_t)region->rank * builder->cells + plane * pieces + piece];
}

static bool note_read(tpi_builder *builder, built_op *op, const tp_region *region)
{
    for (int i = 0; i < region->pieces; i++) {
        cell *c = cell_of(builder, region, i);
        void *list = c->reader;
        if (!depend(op, c->writer) || !grow(&list, c->readers, &c->capacity, sizeof *c->reader))
            return false;
        c->reader = list;
        c->reader[c->readers++] = op;
    }
    return true;
}

static bool note_write(tpi_builder *builder, built_op *op, const tp_region *region)
{
    for (int i = 0; i < region->pieces; i++) {
        cell *c = cell_of(builder, region, i);
        bool kept = depend(op, c->writer);
        for (int r = 0; r < c->readers; r++)
            kept = depend(op, c->reader[r]) && kept;
        if (!kept)
            return false;
        c->writer = op;
        c->readers = 0;
    }
    return true;
}

static int latest_first(const void *a, const void *b)
{
    return (*(built_op *const *)b)->sequence - (*(built_op *const *)a)->sequence;
}

/* Keeps only the waits that say something new: the latest first, since it often implies the others. */
static void prune(const tpi_builder *builder, built_op *op)
{
    int kept = 0;
    if (op->waits > 1)
        qsort(op->wait, (size_t)op->waits, sizeof *op->wait, latest_first);
    for (int i = 0; i < op->waits; i++) {
        built_op *on = op->wait[i];
        if (known(op, on))
            continue;
        join(builder, op, on);
        op->wait[kept++] = on;
    }
    op->waits = kept;
}

/* The first SEND of this RECV's peer to it that no RECV has met yet. */
static built_op *matching_send(tpi_builder *builder, const built_op *recv)
{
    built_op **first = &builder->send[recv->op.peer][recv->rank], *send = *first;
    if (send == NULL || send->sequence > recv->sequence)
        return NULL;
    *first = send->next_send;
    return send;
}

static bool derive(tpi_builder *builder, built_op *op)
{
    if (op->before != NULL)
        join(builder, op, op->before);
    if (op->op.kind == TP_OP_RECV) {
        const built_op *send = matching_send(builder, op);
        if (send != NULL)
            join(builder, op, send);
    }
    for (int i = 0; i < op->op.reads; i++)
        if (!note_read(builder, op, &op->op.read[i]))
            return false;
    for (int i = 0; i < op->op.writes; i++)
        if (!note_write(builder, op, &op->op.write[i]))
            return false;
    prune(builder, op);
    return true;
}

static tp_status allocate_plan(const tpi_builder *builder, tp_plan **out, tpi_plan_block *block)
{
    tpi_plan_size size = {.ops = (size_t)builder->count};
    for (int i = 0; i < builder->count; i++) {
        size.waits += (size_t)builder->op[i]->waits;
        size.regions += (size_t)(builder->op[i]->op.reads + builder->op[i]->op.writes);
    }
    TPI_TRY(tpi_plan_allocate(&size, out, block));
    (*out)->algorithm = (int)builder->desc.algorithm;
    (*out)->pattern = (int)builder->desc.pattern;
    (*out)->ranks = builder->desc.ranks;
    (*out)->chunks = builder->desc.chunks;
    return TP_OK;
}

static void write_op(const built_op *from, tpi_plan_block *block, tp_plan_op *to)
{
    *to = from->op;
    to->waits = from->waits;
    to->wait = block->wait;
    to->read = block->region;
    to->write = block->region + to->reads;
    for (int i = 0; i < from->waits; i++)
        block->wait[i] = (tp_wait){from->wait[i]->rank, from->wait[i]->index};
    memcpy(to->read, from->op.read, (size_t)to->reads * sizeof *to->read);
    memcpy(to->write, from->op.write, (size_t)to->writes * sizeof *to->write);
    block->wait += to->waits;
    block->region += to->reads + to->writes;
}

tp_status tpi_builder_finish(tpi_builder *builder, tp_plan **out)
{
    *out = NULL;
    for (int i = 0; i < builder->count && builder->status == TP_OK; i++)
        if (!derive(builder, builder->op[i]))
            builder->status = TP_ERR_MEMORY;
    if (builder->status != TP_OK)
        return tpi_message(builder->status, "plan builder: out of memory");
    tpi_plan_block block;
    TPI_TRY(allocate_plan(builder, out, &block));
    tp_plan_op *next = block.op;
    for (int rank = 0; rank < builder->desc.ranks; rank++) {
        (*out)->rank[rank].op = next;
        (*out)->rank[rank].count = builder->listed[rank];
        next += builder->listed[rank];
    }
    for (int i = 0; i < builder->count; i++)
        write_op(builder->op[i], &block, &(*out)->rank[builder->op[i]->rank].op[builder->op[i]->index]);
    return TP_OK;
}
