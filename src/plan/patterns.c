#include "plan/patterns.h"

/* Kinds of symbols. */
enum { SYMBOL_INPUT = 1, SYMBOL_SECOND, SYMBOL_GRADIENT, SYMBOL_GEMM, SYMBOL_COMPUTE, SYMBOL_CORE, SYMBOL_ACCUMULATE };

/* Where a pattern's pieces come from and go to. */
typedef enum holding {
    HOLD_NOTHING = 0,
    HOLD_OWN,  /* a rank has its own pieces; they are the same wherever they travel */
    HOLD_LOCAL /* a rank has all pieces, its own version of them */
} holding;

typedef enum ending {
    END_NOTHING = 0,
    END_LOCAL,    /* OUTPUT is a product of own pieces */
    END_GATHERED, /* OUTPUT is a product of all pieces */
    END_SCATTER,  /* OUTPUT is the own pieces of a sum over ranks */
    END_REDUCE    /* OUTPUT is all pieces of a sum over ranks */
} ending;

typedef enum middle { MIDDLE_NONE = 0, MIDDLE_PIECES, MIDDLE_CORE } middle;

typedef struct definition {
    holding input, second;
    ending ending;
    middle middle;
    bool gradient, both; /* GRADIENT; FIRST_GRADIENT too */
    int gradient_part;
    bool sliced; /* pieces are columns of an owner's rows */
} definition;

static const definition definitions[TP_PATTERN_COUNT] = {
    [TP_PATTERN_GEMM] = {.input = HOLD_OWN, .ending = END_LOCAL},
    [TP_PATTERN_GATHER_GEMM] = {.input = HOLD_OWN, .ending = END_GATHERED},
    [TP_PATTERN_GEMM_SCATTER] = {.input = HOLD_LOCAL, .ending = END_SCATTER},
    [TP_PATTERN_GEMM_REDUCE] = {.input = HOLD_LOCAL, .ending = END_REDUCE},
    [TP_PATTERN_GATHER_WEIGHT] = {.input = HOLD_LOCAL, .second = HOLD_OWN, .gradient = true},
    [TP_PATTERN_BACKWARD] =
        {.input = HOLD_LOCAL, .second = HOLD_OWN, .ending = END_SCATTER, .gradient = true, .gradient_part = 1},
    [TP_PATTERN_BACKWARD_REDUCE] =
        {.input = HOLD_LOCAL, .second = HOLD_LOCAL, .ending = END_REDUCE, .gradient = true, .gradient_part = 1},
    [TP_PATTERN_ROW_BACKWARD] =
        {.input = HOLD_OWN, .ending = END_GATHERED, .gradient = true, .gradient_part = 1, .sliced = true},
    [TP_PATTERN_CHAIN] = {.input = HOLD_OWN, .ending = END_SCATTER, .middle = MIDDLE_PIECES},
    [TP_PATTERN_CHAIN_REDUCE] = {.input = HOLD_LOCAL, .ending = END_REDUCE, .middle = MIDDLE_PIECES},
    [TP_PATTERN_CHAIN_CORE] = {.input = HOLD_OWN, .ending = END_SCATTER, .middle = MIDDLE_CORE},
    [TP_PATTERN_CHAIN_CORE_REDUCE] = {.input = HOLD_LOCAL, .ending = END_REDUCE, .middle = MIDDLE_CORE},
#define CHAIN_BACKWARD(held, end, between)                                                                             \
    {                                                                                                                  \
        .input = held, .second = held, .ending = end, .middle = between, .gradient = true, .both = true,               \
        .gradient_part = 3                                                                                             \
    }
    [TP_PATTERN_CHAIN_BACKWARD] = CHAIN_BACKWARD(HOLD_OWN, END_SCATTER, MIDDLE_PIECES),
    [TP_PATTERN_CHAIN_BACKWARD_REDUCE] = CHAIN_BACKWARD(HOLD_LOCAL, END_REDUCE, MIDDLE_PIECES),
    [TP_PATTERN_CHAIN_CORE_BACKWARD] = CHAIN_BACKWARD(HOLD_OWN, END_SCATTER, MIDDLE_CORE),
    [TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE] = CHAIN_BACKWARD(HOLD_LOCAL, END_REDUCE, MIDDLE_CORE),
#undef CHAIN_BACKWARD
};

/* The finalizer of MurmurHash3 over a running state; never 0, which stands for nothing. */
uint64_t tpi_symbol_mix(uint64_t so_far, uint64_t next)
{
    uint64_t h = (so_far ^ (so_far >> 29)) * 0x9e3779b97f4a7c15u + next;
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdu;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 33;
    return h != 0 ? h : 1;
}

static uint64_t symbol(int kind, int a, int b)
{
    return tpi_symbol_mix(tpi_symbol_mix((uint64_t)kind, (uint64_t)a + 1), (uint64_t)b + 1);
}

uint64_t tpi_symbol_gemm(int rank, int part, uint64_t operand)
{
    return tpi_symbol_mix(symbol(SYMBOL_GEMM, rank, part), operand);
}

uint64_t tpi_symbol_compute(int rank, int part, uint64_t operand)
{
    return tpi_symbol_mix(symbol(SYMBOL_COMPUTE, rank, part), operand);
}

uint64_t tpi_symbol_core(int rank, int part, uint64_t all, int piece)
{
    return tpi_symbol_mix(tpi_symbol_mix(symbol(SYMBOL_CORE, rank, part), all), (uint64_t)piece);
}

uint64_t tpi_symbol_accumulate(int rank, int part, uint64_t before, uint64_t operands)
{
    return tpi_symbol_mix(tpi_symbol_mix(symbol(SYMBOL_ACCUMULATE, rank, part), before), operands);
}

int tpi_gradient_part(tp_pattern pattern, bool first)
{
    const definition *d = &definitions[pattern];
    if (first)
        return d->both ? d->gradient_part - 1 : -1;
    return d->gradient ? d->gradient_part : -1;
}

uint64_t tpi_gradient_begin(int rank, bool first, int piece)
{
    return symbol(SYMBOL_GRADIENT, rank, 2 * piece + first);
}

int tpi_gradient_pieces(tp_pattern pattern, int chunks)
{
    return tpi_pattern_is_sliced(pattern) ? chunks : 1;
}

bool tpi_pattern_is_sliced(tp_pattern pattern)
{
    return definitions[pattern].sliced;
}

bool tpi_core_mixes(tp_pattern pattern)
{
    return definitions[pattern].middle == MIDDLE_CORE;
}

/* Piece `piece` of what a rank's callers gave, wherever it is now. */
static uint64_t given(holding held, int kind, int rank, int piece)
{
    return held == HOLD_NOTHING ? 0 : symbol(kind, piece, held == HOLD_LOCAL ? rank : -1);
}

/* What the caller of `rank` itself hands over. */
static uint64_t handed_over(const tpi_promises *promises, holding held, int kind, int rank, int piece)
{
    if (held == HOLD_OWN && piece / promises->chunks != rank)
        return 0;
    return given(held, kind, rank, piece);
}

static uint64_t first_product(const definition *d, int rank, int piece)
{
    return tpi_symbol_gemm(rank, 0, given(d->input, SYMBOL_INPUT, rank, piece));
}

static uint64_t core(const tpi_promises *promises, int rank, int piece)
{
    const definition *d = &definitions[promises->pattern];
    if (d->middle == MIDDLE_CORE)
        return tpi_symbol_core(rank, 0, promises->core[rank], piece);
    return tpi_symbol_compute(rank, 0, first_product(d, rank, piece));
}

uint64_t tpi_gradient_operands(const tpi_promises *promises, bool first, int rank, int piece)
{
    const definition *d = &definitions[promises->pattern];
    uint64_t dy = given(d->input, SYMBOL_INPUT, rank, piece);
    if (first)
        return tpi_symbol_mix(dy, 0);
    if (d->middle != MIDDLE_NONE)
        dy = core(promises, rank, piece);
    return tpi_symbol_mix(dy, given(d->second, SYMBOL_SECOND, rank, piece));
}

static uint64_t partial(const tpi_promises *promises, int rank, int piece)
{
    const definition *d = &definitions[promises->pattern];
    if (d->ending != END_SCATTER && d->ending != END_REDUCE)
        return 0;
    return d->middle == MIDDLE_NONE ? first_product(d, rank, piece)
                                    : tpi_symbol_gemm(rank, 1, core(promises, rank, piece));
}

/* The sum over the slices of an owner up to this one. */
static uint64_t sliced_output(const tpi_promises *promises, int rank, int piece)
{
    uint64_t sum = 0;
    for (int p = piece - piece % promises->chunks; p <= piece; p++)
        sum = tpi_symbol_accumulate(rank, 0, sum, given(HOLD_OWN, SYMBOL_INPUT, rank, p));
    return sum;
}

static uint64_t output(const tpi_promises *promises, int rank, int piece)
{
    const definition *d = &definitions[promises->pattern];
    bool own = piece / promises->chunks == rank;
    switch (d->ending) {
    case END_LOCAL: return own ? first_product(d, rank, piece) : 0;
    case END_GATHERED: return d->sliced ? sliced_output(promises, rank, piece) : first_product(d, rank, piece);
    case END_SCATTER: return own ? promises->sum[piece] : 0;
    case END_REDUCE: return promises->sum[piece];
    case END_NOTHING: break;
    }
    return 0;
}

static uint64_t gathered(const definition *d, int piece)
{
    if (d->input == HOLD_OWN && d->ending != END_LOCAL)
        return given(HOLD_OWN, SYMBOL_INPUT, 0, piece);
    return d->second == HOLD_OWN ? given(HOLD_OWN, SYMBOL_SECOND, 0, piece) : 0;
}

uint64_t tpi_promise(const tpi_promises *promises, tp_buffer buffer, int rank, int slot, int piece)
{
    const definition *d = &definitions[promises->pattern];
    switch (buffer) {
    case TP_BUFFER_INPUT: return handed_over(promises, d->input, SYMBOL_INPUT, rank, piece);
    case TP_BUFFER_SECOND: return handed_over(promises, d->second, SYMBOL_SECOND, rank, piece);
    case TP_BUFFER_GATHERED: return gathered(d, piece);
    case TP_BUFFER_MIDDLE: return d->middle == MIDDLE_NONE ? 0 : first_product(d, rank, piece);
    case TP_BUFFER_CORE: return d->middle == MIDDLE_NONE ? 0 : core(promises, rank, piece);
    case TP_BUFFER_PARTIAL: return partial(promises, rank, piece);
    case TP_BUFFER_INBOX: return partial(promises, slot, piece);
    case TP_BUFFER_OUTPUT: return output(promises, rank, piece);
    case TP_BUFFER_GRADIENT: return d->gradient ? tpi_gradient_begin(rank, false, piece) : 0;
    case TP_BUFFER_FIRST_GRADIENT: return d->both ? tpi_gradient_begin(rank, true, piece) : 0;
    case TP_BUFFER_GATHERED_SECOND:
        return d->both && d->second == HOLD_OWN ? given(HOLD_OWN, SYMBOL_SECOND, 0, piece) : 0;
    case TP_BUFFERS: break;
    }
    return 0;
}

size_t tpi_promises_room(int ranks, int chunks)
{
    return (size_t)ranks * (size_t)chunks + (size_t)ranks;
}

void tpi_promises_fill(tpi_promises *promises)
{
    const definition *d = &definitions[promises->pattern];
    int pieces = promises->ranks * promises->chunks;
    promises->core = promises->memory;
    promises->sum = promises->memory + promises->ranks;
    for (int rank = 0; rank < promises->ranks; rank++) {
        promises->core[rank] = 0;
        for (int piece = 0; d->middle == MIDDLE_CORE && piece < pieces; piece++)
            promises->core[rank] = tpi_symbol_mix(promises->core[rank], first_product(d, rank, piece));
    }
    for (int piece = 0; piece < pieces; piece++) {
        promises->sum[piece] = 0;
        for (int rank = 0; rank < promises->ranks; rank++)
            promises->sum[piece] = tpi_symbol_mix(promises->sum[piece], partial(promises, rank, piece));
    }
}
