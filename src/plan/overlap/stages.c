#include "plan/overlap/stages.h"

tp_region tpi_region(tp_buffer buffer, int rank, tp_region unit)
{
    unit.buffer = buffer;
    unit.rank = rank;
    unit.slot = 0;
    return unit;
}

tp_region tpi_all(const tpi_stages *s)
{
    return (tp_region){.piece = 0, .pieces = s->ranks * s->chunks, .step = 1};
}

tp_region tpi_owned(const tpi_stages *s, int owner)
{
    return (tp_region){.piece = owner * s->chunks, .pieces = s->chunks, .step = 1};
}

tp_region tpi_chunk(const tpi_stages *s, int owner, int chunk)
{
    return (tp_region){.piece = owner * s->chunks + chunk, .pieces = 1, .step = 1};
}

bool tpi_has_two_gradients(tp_pattern pattern)
{
    return pattern == TP_PATTERN_CHAIN_BACKWARD || pattern == TP_PATTERN_CHAIN_BACKWARD_REDUCE ||
           pattern == TP_PATTERN_CHAIN_CORE_BACKWARD || pattern == TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE;
}

bool tpi_has_gradient(tp_pattern pattern)
{
    return pattern == TP_PATTERN_GATHER_WEIGHT || pattern == TP_PATTERN_BACKWARD ||
           pattern == TP_PATTERN_BACKWARD_REDUCE || pattern == TP_PATTERN_ROW_BACKWARD ||
           tpi_has_two_gradients(pattern);
}

static bool is_chain(tp_pattern pattern)
{
    return pattern >= TP_PATTERN_CHAIN;
}

static bool has_core(tp_pattern pattern)
{
    return pattern == TP_PATTERN_CHAIN_CORE || pattern == TP_PATTERN_CHAIN_CORE_REDUCE ||
           pattern == TP_PATTERN_CHAIN_CORE_BACKWARD || pattern == TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE;
}

static bool ends_everywhere(tp_pattern pattern)
{
    return pattern == TP_PATTERN_GEMM_REDUCE || pattern == TP_PATTERN_BACKWARD_REDUCE ||
           pattern == TP_PATTERN_CHAIN_REDUCE || pattern == TP_PATTERN_CHAIN_CORE_REDUCE ||
           pattern == TP_PATTERN_CHAIN_BACKWARD_REDUCE || pattern == TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE;
}

static bool gathers_input(tp_pattern pattern)
{
    return pattern == TP_PATTERN_GATHER_GEMM || pattern == TP_PATTERN_ROW_BACKWARD ||
           (is_chain(pattern) && !ends_everywhere(pattern));
}

static bool gathers_second(tp_pattern pattern)
{
    return tpi_has_gradient(pattern) && pattern != TP_PATTERN_ROW_BACKWARD && !ends_everywhere(pattern);
}

static bool has_partial(tp_pattern pattern)
{
    return pattern != TP_PATTERN_GEMM && pattern != TP_PATTERN_GATHER_GEMM && pattern != TP_PATTERN_GATHER_WEIGHT &&
           pattern != TP_PATTERN_ROW_BACKWARD;
}

static void add_write(tpi_emit *emit, tp_region region)
{
    emit->write[emit->writes++] = region;
}

/* What the caller hands over at the beginning, and gets back at the end. */
static void add_callers_buffers(const tpi_stages *s, int rank, tpi_emit *emit)
{
    bool own_input = gathers_input(s->pattern) || s->pattern == TP_PATTERN_GEMM;
    add_write(emit, tpi_region(TP_BUFFER_INPUT, rank, own_input ? tpi_owned(s, rank) : tpi_all(s)));
    if (gathers_second(s->pattern))
        add_write(emit, tpi_region(TP_BUFFER_SECOND, rank, tpi_owned(s, rank)));
    if (tpi_operands_are_local(s))
        add_write(emit, tpi_region(TP_BUFFER_SECOND, rank, tpi_all(s)));
    if (tpi_has_gradient(s->pattern))
        add_write(emit,
                  tpi_region(TP_BUFFER_GRADIENT, rank, (tp_region){.pieces = s->sliced ? s->chunks : 1, .step = 1}));
    if (tpi_has_two_gradients(s->pattern))
        add_write(emit, tpi_region(TP_BUFFER_FIRST_GRADIENT, rank, (tp_region){.pieces = 1, .step = 1}));
}

/* The output pieces of a rank; none for a weight gradient alone. */
static tp_region output_of(const tpi_stages *s, int rank)
{
    bool all = s->reduces || s->sliced || s->pattern == TP_PATTERN_GATHER_GEMM;
    return tpi_region(TP_BUFFER_OUTPUT, rank, all ? tpi_all(s) : tpi_owned(s, rank));
}

static void enter_all(const tpi_stages *s)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        tpi_emit emit = {.kind = TP_OP_ENTER, .lane = TP_LANE_COMPUTE};
        add_callers_buffers(s, rank, &emit);
        if (s->pattern != TP_PATTERN_GATHER_WEIGHT)
            add_write(&emit, output_of(s, rank));
        tpi_builder_add(s->builder, rank, &emit);
    }
}

static void leave_all(const tpi_stages *s)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        tpi_emit emit = {.kind = TP_OP_LEAVE, .lane = TP_LANE_COMPUTE};
        add_callers_buffers(s, rank, &emit);
        if (s->pattern != TP_PATTERN_GATHER_WEIGHT) {
            emit.read[emit.reads++] = output_of(s, rank);
            add_write(&emit, output_of(s, rank));
        }
        if (has_partial(s->pattern))
            add_write(&emit, tpi_region(TP_BUFFER_PARTIAL, rank, tpi_all(s)));
        tpi_builder_add(s->builder, rank, &emit);
    }
}

static void emit_gemm(const tpi_stages *s, int rank, int part, tp_region from, tp_region to)
{
    tpi_emit emit = {.kind = TP_OP_GEMM, .lane = TP_LANE_COMPUTE, .part = part, .unit = to, .reads = 1, .read = {from},
                     .writes = 1, .write = {to}};
    tpi_builder_add(s->builder, rank, &emit);
}

static void emit_compute(const tpi_stages *s, int rank, tp_region from, tp_region to)
{
    tpi_emit emit = {.kind = TP_OP_COMPUTE, .lane = TP_LANE_COMPUTE, .unit = to, .reads = 1, .read = {from},
                     .writes = 1, .write = {to}};
    tpi_builder_add(s->builder, rank, &emit);
}

/* The first GEMM's operand: gathered, or the caller's own. */
static tp_region first_source(const tpi_stages *s, int rank, tp_region unit)
{
    return gathers_input(s->pattern) ? s->algorithm->source(s, rank, TP_BUFFER_INPUT, unit)
                                     : tpi_region(TP_BUFFER_INPUT, rank, unit);
}

/* GEMM 0 of every unit, into `to`; with `scatter`, partial sums travel as they are made. */
static void first_gemms(tpi_stages *s, tp_buffer to, bool scatter)
{
    for (int k = 0; k < s->algorithm->units(s); k++) {
        for (int rank = 0; rank < s->ranks; rank++) {
            tp_region unit = s->algorithm->unit(s, rank, k);
            emit_gemm(s, rank, 0, first_source(s, rank, unit), tpi_region(to, rank, unit));
        }
        if (scatter)
            s->algorithm->scatter(s, k);
    }
}

/* GEMM 0, COMPUTE and GEMM 1 of every unit in turn: no stage waits for the whole of the one before. */
static void chained_gemms(tpi_stages *s)
{
    if (gathers_input(s->pattern))
        s->order = TPI_OWN_AROUND;
    for (int k = 0; k < s->algorithm->units(s); k++) {
        for (int rank = 0; rank < s->ranks; rank++) {
            tp_region unit = s->algorithm->unit(s, rank, k);
            tp_region middle = tpi_region(TP_BUFFER_MIDDLE, rank, unit), core = tpi_region(TP_BUFFER_CORE, rank, unit);
            emit_gemm(s, rank, 0, first_source(s, rank, unit), middle);
            emit_compute(s, rank, middle, core);
            emit_gemm(s, rank, 1, core, tpi_region(TP_BUFFER_PARTIAL, rank, unit));
        }
        s->algorithm->scatter(s, k);
    }
}

static void core_and_second_gemms(tpi_stages *s)
{
    for (int rank = 0; rank < s->ranks; rank++)
        emit_compute(s, rank, tpi_region(TP_BUFFER_MIDDLE, rank, tpi_all(s)),
                     tpi_region(TP_BUFFER_CORE, rank, tpi_all(s)));
    s->order = TPI_OWN_LAST;
    for (int k = 0; k < s->algorithm->units(s); k++) {
        for (int rank = 0; rank < s->ranks; rank++) {
            tp_region unit = s->algorithm->unit(s, rank, k);
            emit_gemm(s, rank, 1, tpi_region(TP_BUFFER_CORE, rank, unit), tpi_region(TP_BUFFER_PARTIAL, rank, unit));
        }
        s->algorithm->scatter(s, k);
    }
}

static tp_region second_source(const tpi_stages *s, int rank, tp_region unit)
{
    return gathers_second(s->pattern) ? s->algorithm->source(s, rank, TP_BUFFER_SECOND, unit)
                                      : tpi_region(TP_BUFFER_SECOND, rank, unit);
}

/* The weight gradient of a chain's first layer (that is, of the second in forward): its other operand is local and no
 * concern of the plan. */
static void first_weight_gemms(const tpi_stages *s)
{
    tp_region gradient = {.buffer = TP_BUFFER_FIRST_GRADIENT, .pieces = 1, .step = 1};
    for (int k = 0; k < s->algorithm->weight_units(s); k++)
        for (int rank = 0; rank < s->ranks; rank++) {
            tp_region unit = s->algorithm->weight_unit(s, rank, k);
            gradient.rank = rank;
            tpi_emit emit = {.kind = TP_OP_GEMM, .lane = TP_LANE_COMPUTE, .part = 2, .unit = unit, .reads = 2,
                             .writes = 1, .write = {gradient}};
            emit.read[0] = gradient;
            emit.read[1] = first_source(s, rank, unit);
            tpi_builder_add(s->builder, rank, &emit);
        }
}

static void weight_gemms(const tpi_stages *s, int part)
{
    tp_region gradient = {.buffer = TP_BUFFER_GRADIENT, .pieces = 1, .step = 1};
    for (int k = 0; k < s->algorithm->weight_units(s); k++)
        for (int rank = 0; rank < s->ranks; rank++) {
            tp_region unit = s->algorithm->weight_unit(s, rank, k);
            gradient.rank = rank;
            tpi_emit emit = {.kind = TP_OP_GEMM, .lane = TP_LANE_COMPUTE, .part = part, .unit = unit, .reads = 3,
                             .writes = 1, .write = {gradient}};
            emit.read[0] = gradient;
            emit.read[1] = tpi_region(tpi_has_two_gradients(s->pattern) ? TP_BUFFER_CORE : TP_BUFFER_INPUT, rank, unit);
            emit.read[2] = second_source(s, rank, unit);
            tpi_builder_add(s->builder, rank, &emit);
        }
}

static void local_gemms(const tpi_stages *s)
{
    for (int rank = 0; rank < s->ranks; rank++)
        emit_gemm(s, rank, 0, tpi_region(TP_BUFFER_INPUT, rank, tpi_owned(s, rank)),
                  tpi_region(TP_BUFFER_OUTPUT, rank, tpi_owned(s, rank)));
}

static void middle_stages(tpi_stages *s)
{
    if (is_chain(s->pattern) && has_core(s->pattern)) {
        first_gemms(s, TP_BUFFER_MIDDLE, false);
        core_and_second_gemms(s);
    } else if (is_chain(s->pattern)) {
        chained_gemms(s);
    } else if (has_partial(s->pattern)) {
        first_gemms(s, TP_BUFFER_PARTIAL, true);
    } else if (s->pattern == TP_PATTERN_GATHER_GEMM) {
        first_gemms(s, TP_BUFFER_OUTPUT, false);
    } else if (s->sliced) {
        s->algorithm->slices(s);
    } else if (s->pattern == TP_PATTERN_GEMM) {
        local_gemms(s);
    }
}

void tpi_stages_run(tpi_builder *builder, const tpi_algorithm *algorithm)
{
    const tp_plan_desc *desc = tpi_builder_desc(builder);
    tpi_stages s = {.builder = builder,
                    .algorithm = algorithm,
                    .pattern = desc->pattern,
                    .ranks = desc->ranks,
                    .chunks = desc->chunks,
                    .reduces = ends_everywhere(desc->pattern),
                    .sliced = desc->pattern == TP_PATTERN_ROW_BACKWARD,
                    .order = gathers_input(desc->pattern) ? TPI_OWN_FIRST : TPI_OWN_LAST};
    enter_all(&s);
    if (gathers_input(s.pattern))
        algorithm->gather(&s, TP_BUFFER_INPUT);
    if (gathers_second(s.pattern))
        algorithm->gather(&s, TP_BUFFER_SECOND);
    middle_stages(&s);
    if (s.pattern == TP_PATTERN_GATHER_WEIGHT)
        weight_gemms(&s, 0);
    if (s.pattern == TP_PATTERN_BACKWARD || s.pattern == TP_PATTERN_BACKWARD_REDUCE)
        weight_gemms(&s, 1);
    if (tpi_has_two_gradients(s.pattern))
        first_weight_gemms(&s);
    /* A sum that goes back to all ranks does so under the last weight gradient. */
    bool early = tpi_has_two_gradients(s.pattern) && s.reduces;
    if (early)
        algorithm->finish(&s);
    if (tpi_has_two_gradients(s.pattern))
        weight_gemms(&s, 3);
    if (has_partial(s.pattern) && !early)
        algorithm->finish(&s);
    leave_all(&s);
}
