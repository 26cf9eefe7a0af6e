#include "plan/builder.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"

/* An emitted op with its place. */
typedef struct built_op {
    tpi_emit emit;
    int sequence;             /* in emission order */
    int rank, index;          /* in its rank's list */
    int place;                /* in its lane */
    bool received;            /* SEND: a RECV was matched to it */
    int waits, wait_capacity;
    struct built_op **wait;
    struct built_op *before;  /* on the same lane */
    int clock[TP_PLAN_MAX_RANKS][TP_LANES]; /* ops of each lane known to be finished before this one begins */
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

void tpi_builder_add(tpi_builder *builder, int rank, const tpi_emit *emit)
{
    built_op *op = calloc(1, sizeof *op);
    void *list = builder->op;
    if (op == NULL || !grow(&list, builder->count, &builder->capacity, sizeof *builder->op)) {
        free(op);
        builder->status = TP_ERR_MEMORY;
        return;
    }
    builder->op = list;
    op->emit = *emit;
    op->sequence = builder->count;
    op->rank = rank;
    op->index = builder->listed[rank]++;
    op->before = builder->last[rank][emit->lane];
    op->place = op->before ? op->before->place + 1 : 0;
    builder->last[rank][emit->lane] = op;
    builder->op[builder->count++] = op;
}

static void join(built_op *op, const built_op *done)
{
    for (int r = 0; r < TP_PLAN_MAX_RANKS; r++)
        for (int lane = 0; lane < TP_LANES; lane++)
            if (op->clock[r][lane] < done->clock[r][lane])
                op->clock[r][lane] = done->clock[r][lane];
    if (op->clock[done->rank][done->emit.lane] < done->place + 1)
        op->clock[done->rank][done->emit.lane] = done->place + 1;
}

static bool known(const built_op *op, const built_op *done)
{
    return op->clock[done->rank][done->emit.lane] > done->place;
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
static void prune(built_op *op)
{
    int kept = 0;
    if (op->waits > 1)
        qsort(op->wait, (size_t)op->waits, sizeof *op->wait, latest_first);
    for (int i = 0; i < op->waits; i++) {
        built_op *on = op->wait[i];
        if (known(op, on))
            continue;
        join(op, on);
        op->wait[kept++] = on;
    }
    op->waits = kept;
}

/* The first SEND of this RECV's peer to it that no RECV has met yet. */
static built_op *matching_send(const tpi_builder *builder, const built_op *recv)
{
    for (int i = 0; i < recv->sequence; i++) {
        built_op *send = builder->op[i];
        if (send->emit.kind == TP_OP_SEND && !send->received && send->rank == recv->emit.peer && send->emit.peer == recv->rank) {
            send->received = true;
            return send;
        }
    }
    return NULL;
}

static bool derive(tpi_builder *builder, built_op *op)
{
    if (op->before != NULL)
        join(op, op->before);
    if (op->emit.kind == TP_OP_RECV) {
        const built_op *send = matching_send(builder, op);
        if (send != NULL)
            join(op, send);
    }
    for (int i = 0; i < op->emit.reads; i++)
        if (!note_read(builder, op, &op->emit.read[i]))
            return false;
    for (int i = 0; i < op->emit.writes; i++)
        if (!note_write(builder, op, &op->emit.write[i]))
            return false;
    prune(op);
    return true;
}

/* Sizes of the one block that a plan lives in, then the pointers into it. */
typedef struct plan_block {
    tp_plan_op *op;
    tp_wait *wait;
    tp_region *region;
} plan_block;

static tp_status allocate_plan(const tpi_builder *builder, tp_plan **out, plan_block *block)
{
    size_t waits = 0, regions = 0, ops = (size_t)builder->count;
    for (int i = 0; i < builder->count; i++) {
        waits += (size_t)builder->op[i]->waits;
        regions += (size_t)(builder->op[i]->emit.reads + builder->op[i]->emit.writes);
    }
    tp_plan *plan = calloc(1, sizeof *plan);
    char *memory = plan ? calloc(1, ops * sizeof(tp_plan_op) + waits * sizeof(tp_wait) + regions * sizeof(tp_region) + 1) : NULL;
    if (memory == NULL) {
        free(plan);
        return tpi_message(TP_ERR_MEMORY, "plan: out of memory for %d ops", builder->count);
    }
    plan->algorithm = builder->desc.algorithm;
    plan->pattern = builder->desc.pattern;
    plan->ranks = builder->desc.ranks;
    plan->chunks = builder->desc.chunks;
    plan->memory = memory;
    block->op = (tp_plan_op *)(void *)memory;
    block->wait = (tp_wait *)(void *)(block->op + ops);
    block->region = (tp_region *)(void *)(block->wait + waits);
    *out = plan;
    return TP_OK;
}

static void write_op(const built_op *from, plan_block *block, tp_plan_op *to)
{
    const tpi_emit *emit = &from->emit;
    bool has_peer = emit->kind == TP_OP_SEND || emit->kind == TP_OP_RECV || emit->kind == TP_OP_PULL || emit->kind == TP_OP_PUSH;
    *to = (tp_plan_op){.kind = emit->kind,
                       .lane = emit->lane,
                       .part = emit->part,
                       .piece = emit->unit.piece,
                       .pieces = emit->unit.pieces,
                       .step = emit->unit.step,
                       .peer = has_peer ? emit->peer : -1,
                       .collective = emit->collective,
                       .waits = from->waits,
                       .reads = emit->reads,
                       .writes = emit->writes,
                       .wait = block->wait,
                       .read = block->region,
                       .write = block->region + emit->reads};
    for (int i = 0; i < from->waits; i++)
        block->wait[i] = (tp_wait){from->wait[i]->rank, from->wait[i]->index};
    memcpy(to->read, emit->read, (size_t)emit->reads * sizeof *to->read);
    memcpy(to->write, emit->write, (size_t)emit->writes * sizeof *to->write);
    block->wait += from->waits;
    block->region += emit->reads + emit->writes;
}

tp_status tpi_builder_finish(tpi_builder *builder, tp_plan **out)
{
    *out = NULL;
    for (int i = 0; i < builder->count && builder->status == TP_OK; i++)
        if (!derive(builder, builder->op[i]))
            builder->status = TP_ERR_MEMORY;
    if (builder->status != TP_OK)
        return tpi_message(builder->status, "plan builder: out of memory");
    plan_block block = {NULL, NULL, NULL};
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

void tp_plan_destroy(tp_plan *plan)
{
    if (plan == NULL)
        return;
    free(plan->memory);
    free(plan);
}
