/* Runs one layer on every layout: tensor-parallel degree, sequence parallelism, threads, instruction set; and brings
 * what it made back to global tensors, so that layouts can be compared bit for bit. */
#ifndef TPT_LAYOUTS_H
#define TPT_LAYOUTS_H

#include <tp/tp.h>

#define TPT_MAX_PARAMS 16

typedef struct tpt_layout {
    int tp;
    bool sequence_parallel;
    int threads;
    tp_isa isa;
    uint64_t lane_delay_seed;
    bool issue_ahead; /* ranks wait for each other when they issue, as on devices */
    bool apart;       /* with that, under RING: messages go over the communicator, as between processes */
    bool split_backward; /* backward_input, then backward_weight, instead of backward */
    unsigned frozen; /* bit k: parameters 2k and 2k + 1 have no gradients */
    bool keeps_biases; /* but 2k + 1 has */
    bool without_dx;
    bool begin; /* gradients are poisoned, and tp_params_begin says that they count as zero */
    tp_overlap overlap;
    int chunks;
    int pulling; /* enum tpi_pulling */
    const struct tp_machine *machine; /* for TP_OVERLAP_AUTO */
    tp_device device;
    const char *plugin;
    int devices; /* ranks are dealt out over so many; 0: 1 */
    tp_sum_order sum_order;
    bool tf32; /* with TP_SUM_FAST on a GPU */
    tp_peer_kernels peer_kernels;
} tpt_layout;

/* Which side of a layer is cut over ranks by columns (single-unit parts only); the other follows sequence
 * parallelism. */
typedef enum tpt_cut { TPT_CUT_NONE = 0, TPT_CUT_OUTPUT, TPT_CUT_INPUT } tpt_cut;

/* A layer as the harness sees it. layer is what create made. */
typedef struct tpt_layer_table {
    tp_status (*create)(tp_ctx *ctx, const void *desc, const tpt_layout *layout, void **layer);
    void (*destroy)(void *layer);
    int (*params)(void *layer, tp_param **out, int capacity);
    size_t (*saved_bytes)(void *layer, const tp_pass *pass);
    tp_status (*forward)(tp_ctx *ctx, void *layer, const tp_pass *pass, const tp_io *io, void *memory, size_t bytes,
                         bool save);
    tp_status (*backward)(tp_ctx *ctx, void *layer, const tp_pass *pass, const tp_io *io);
    tp_status (*backward_split)(tp_ctx *ctx, void *layer, const tp_pass *pass, const tp_io *io);
} tpt_layer_table;

typedef struct tpt_case {
    const char *name;
    const tpt_layer_table *table;
    const void *desc;
    tpt_cut cut;
    tp_dtype dtype;
    int64_t in, out; /* global features */
    tp_pass pass;
    bool residual; /* forward with a residual */
    bool residual_gradient; /* backward with one to be added to dx */
    bool sees_all_tokens;   /* not for sequence parallelism */
    int microbatches; /* backward is run this many times on the same data; 0: 1 */
    bool tf32;        /* tpt_result_near: one of the two may be by TF32 products */
    uint64_t seed;
} tpt_case;

/* Global tensors: y, dx in the case's dtype; parameters and gradients in f32, in the layer's order. */
typedef struct tpt_result {
    void *y, *y_unsaved, *dx;
    int params;
    char name[TPT_MAX_PARAMS][TP_PARAM_NAME];
    int64_t elements[TPT_MAX_PARAMS];
    float *value[TPT_MAX_PARAMS], *grad[TPT_MAX_PARAMS];
    float grad_norm;
} tpt_result;

/* Global inputs of a case: x, residual, dy, what is added to dx. Freed by free(). */
void *tpt_case_input(const tpt_case *c);
void *tpt_case_residual(const tpt_case *c);
void *tpt_case_gradient(const tpt_case *c);
void *tpt_case_residual_gradient(const tpt_case *c);

/* Runs the case; any failure fails the test. */
void tpt_case_run(const tpt_case *c, const tpt_layout *layout, tpt_result *out);
/* The same where it may fail. */
tp_status tpt_case_try(const tpt_case *c, const tpt_layout *layout, tpt_result *out);
void tpt_result_free(tpt_result *result);

/* True if everything has the same bits; says what differs. */
bool tpt_result_same(const tpt_case *c, const char *layout, const tpt_result *a, const tpt_result *b);

/* A forward pass in double precision: y [tokens, out] from x and the parameters' global values (same order). */
typedef void (*tpt_reference)(const tpt_case *c, const double *x, double *const *param, double *y);

/* Compares a result with the reference: y directly, all gradients with central differences of sum(y * dy). scale:
 * magnitude for the tolerance. */
void tpt_result_check(const tpt_case *c, const tpt_result *result, tpt_reference reference, int depth);

/* True if a result is as near to another as two that went through `depth` ops may be, values bit for bit; says what is
 * not. */
bool tpt_result_near(const tpt_case *c, const tpt_result *got, const tpt_result *want, int depth);

/* The layouts every layer must give the same bits on: TP 1, 2, 4, 8, sequence parallelism on and off, threads 1, 2,
 * 3. */
void tpt_same_on_all_layouts(const tpt_case *c);

#endif
