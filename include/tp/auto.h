/* TP_OVERLAP_AUTO: which algorithm and how many chunks, from a machine's figures. Every candidate's plan is simulated
 * with the costs of the shape, and the cheapest wins; `none` wins where nothing is faster by more than the noise. Pure
 * functions of their arguments. */
#ifndef TP_AUTO_H
#define TP_AUTO_H

#include <tp/context.h>
#include <tp/dtype.h>
#include <tp/simulate.h>

#define TP_MACHINE_POINTS 16

/* FLOP/s of a product by rows, rows rising; times are linear between points. Of a product with a weight, points at most
 * two rows apart are the sizes of tiles: what lies between takes as long as the larger one. */
typedef struct tp_machine_curve {
    int points;
    double rows[TP_MACHINE_POINTS], flops[TP_MACHINE_POINTS];
} tp_machine_curve;

/* What `tp_bench calibrate` measures: one rank's rates while its peers work too. A rate of 0 was not measured and costs
 * nothing. */
typedef struct tp_machine {
    char name[96];
    tp_device device; /* whose times these are: a context of another kind refuses them */
    int threads; /* compute threads a rank */
    tp_machine_curve gemm[TP_DTYPE_COUNT];   /* a layer's product with its weight. points 0: as f32 */
    tp_machine_curve weight[TP_DTYPE_COUNT]; /* a weight gradient that is added to. points 0: as gemm, and what is added
                                              * to is read and written at the rate of adds */
    double direct_slowdown;         /* of a GEMM that reads peers' memory: its time over that with own memory; 0: 1 */
    double call_seconds;            /* fixed, an op of a plan */
    double transfer_seconds;        /* fixed, a PULL, SEND or COLLECTIVE */
    double wait_seconds;            /* from a peer's or lane's flag to going on */
    double lane_seconds;            /* fixed, an op of COMM or COPY beside compute, where they have no core of their
                                     * own: switching to it and back */
    double meet_seconds;            /* the same, a COLLECTIVE: lanes of all ranks meet. 0: as lane_seconds */
    double start_seconds;           /* fixed, a plan that uses such a lane: starting it and waiting for its end */
    double wake_seconds;            /* from the end of what a thread sleeps for to its going on */
    double copy_bytes_per_second;   /* out of a peer's memory */
    double reduce_bytes_per_second; /* read and written by adds */
    double activation_seconds;      /* of one element, between the two GEMMs of a feed-forward layer */
    double memory_bytes_per_second; /* of what a GEMM finds in no cache */
    double gradient_bytes_per_second; /* of a weight gradient that is in no cache, read, added to and written: the first
                                       * call on it takes no less. 0: it is fetched as the rest is */
    bool lanes_share_cores;         /* COMM and COPY have no core of their own: their copying takes time from compute.
                                     * PULL is priced, and runs, in one lane then; contexts on the CPU go by their own
                                     * cores and ranks instead */
    tp_link link;                   /* between ranks; bandwidth 0: memory is shared, and copying is all there is */
} tp_machine;

/* What is combined, on one rank. GEMM k multiplies `rows` rows (all ranks' tokens) of inner[k] features by a weight of
 * cols[k] x inner[k], or, for a weight gradient, adds up cols[k] x inner[k] over the rows, SECOND having cols[k]
 * features. */
typedef struct tp_overlap_shape {
    tp_pattern pattern;
    tp_dtype dtype;
    int ranks;
    int64_t rows;
    int64_t cols[2], inner[2];
    double compute_flops, compute_bytes; /* of COMPUTE 0, all rows together */
    bool apart; /* ranks don't reach each other's memory: algorithms of collectives only (none, bulk, pipeline) */
} tp_overlap_shape;

typedef struct tp_overlap_candidate {
    tp_overlap algorithm;
    int chunks;
    double seconds; /* predicted */
    double gemm_seconds; /* uncut, each GEMM and compute in one call */
    double comm_seconds, exposed_seconds, hidden;
    double lane_seconds; /* that lanes without a core of their own take from what rank 0 computes; less of it in
                          * `seconds` where that is not what is waited for */
} tp_overlap_candidate;

#define TP_OVERLAP_CANDIDATES 24

typedef struct tp_overlap_choice {
    tp_overlap algorithm;
    int chunks;
    double seconds; /* predicted */
    int candidates;
    tp_overlap_candidate candidate[TP_OVERLAP_CANDIDATES]; /* [0]: none */
    char reason[160];
} tp_overlap_choice;

/* Choices by the number of rows, made once, so that looking one up neither computes nor allocates. */
#define TP_OVERLAP_CLASSES 48

typedef struct tp_overlap_table {
    int classes;
    struct {
        int64_t rows; /* up to which it holds */
        tp_overlap algorithm;
        int chunks;
    } entry[TP_OVERLAP_CLASSES];
} tp_overlap_table;

TP_BEGIN_DECLS

/* A machine nobody measured: one core of a server, ranks sharing memory, lanes sharing cores. NULL: nothing is done. */
TP_API void tp_machine_default(tp_machine *out);

/* The same of a kind of device. CUDA: an A100 a rank, which reach each other over NVLink, products by cuBLASLt; lanes
 * are streams of their own. */
TP_API void tp_machine_default_of(tp_device device, tp_machine *out);

/* Text form: a first line that says whose times they are ("tp-machine 3", "tp-machine 3 cuda"), then one line a figure,
 * in whole numbers of the unit in its name (2^63 - 1: that, or more); control characters in the machine's name become
 * blanks, so that it is read back. Writes at most `bytes` with the final 0; returns the length it needs without it (0:
 * machine is NULL). */
TP_API size_t tp_machine_print(const tp_machine *machine, char *text, size_t bytes);

/* Errors: TP_ERR_FORMAT with the line and what is wrong with it: a figure that is missing, comes twice, or can't be
 * (with its bounds), or a text that was cut. */
TP_API tp_status tp_machine_parse(const char *text, tp_machine *out);

/* Errors: TP_ERR_IO, and those of parse. */
TP_API tp_status tp_machine_load(const char *path, tp_machine *out);

/* Costs of running a plan on a shape of its pattern and ranks. Smaller GEMMs are slower: what the plan's units lose is
 * in gemm_overhead.
 * Errors: TP_ERR_ARGUMENT, TP_ERR_STATE (an op of the plan is none: names rank and op). */
TP_API tp_status tp_overlap_costs(const tp_machine *machine, const tp_overlap_shape *shape, const tp_plan *plan,
                                  tp_plan_costs *out);

/* What a plan of the shape's pattern and ranks takes on the machine: those costs, and what lanes without a core of
 * their own take from compute, simulated.
 * Errors: TP_ERR_ARGUMENT, TP_ERR_MEMORY, and those of tp_plan_simulate. */
TP_API tp_status tp_overlap_predict(const tp_machine *machine, const tp_overlap_shape *shape, const tp_plan *plan,
                                    tp_overlap_candidate *out);

/* Errors: TP_ERR_ARGUMENT (names the machine's or shape's field), TP_ERR_MEMORY. */
TP_API tp_status tp_overlap_choose(const tp_machine *machine, const tp_overlap_shape *shape, tp_overlap_choice *out);

/* All candidates with their predicted times, the chosen one marked, and the reason. Writes at most `bytes` with the
 * final 0; returns the length it needs without it (0: shape or choice is NULL). */
TP_API size_t tp_overlap_explain(const tp_overlap_shape *shape, const tp_overlap_choice *choice, char *text,
                                 size_t bytes);

/* Choices for up to 1, 2, 3, 4, 6, 8, 12, 16, ... rows, to the first class that holds shape->rows, each for the middle
 * of its class. Not all is simulated: of every four classes one, and between two that choose differently the ones in
 * the middle, until neighbours are reached; of an algorithm's chunk counts no more after one that takes 10 % longer
 * than the best before it; between two classes nothing that takes more than twice the best one's time in both. So
 * classes of one choice may hide a narrow one in between, which tp_overlap_choose would find. */
TP_API tp_status tp_overlap_table_fill(const tp_machine *machine, const tp_overlap_shape *shape, tp_overlap_table *out);

/* The choice for so many rows: *algorithm and *chunks. Past the last class: that one's; an empty table, or NULL: none.
 * A place that is NULL: nothing is done. */
TP_API void tp_overlap_table_find(const tp_overlap_table *table, int64_t rows, tp_overlap *algorithm, int *chunks);

TP_END_DECLS
#endif
