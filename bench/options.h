/* The command line of tp_bench: one table of options, read into one plain struct. Nothing here allocates or
 * measures. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tp/tp.h>

#define BENCH_LIST 64
#define BENCH_FILES 64
#define BENCH_MESSAGE 512

/* Exit statuses. */
enum { BENCH_OK = 0, BENCH_CHECK_FAILED = 1, BENCH_USAGE = 2, BENCH_FAILED = 3 };

/* Commands, as bits: an option says which of them know it. */
enum {
    BENCH_INFO = 1,
    BENCH_GEMM = 2,
    BENCH_COLLECTIVE = 4,
    BENCH_LINEAR = 8,
    BENCH_MLP = 16,
    BENCH_ATTENTION = 32,
    BENCH_BLOCK = 64,
    BENCH_MODEL = 128,
    BENCH_SWEEP = 256,
    BENCH_PLAN = 512,
    BENCH_CALIBRATE = 1024,
    BENCH_AUTO = 2048,
    BENCH_NORM = 4096,
    BENCH_ROOFLINE = 8192,
    BENCH_LAYERS = BENCH_LINEAR | BENCH_MLP | BENCH_ATTENTION | BENCH_NORM | BENCH_BLOCK,
    BENCH_MODELS = BENCH_MODEL | BENCH_SWEEP | BENCH_ROOFLINE,
    BENCH_ALL = 16383
};

typedef struct bench_list {
    int count;
    int64_t value[BENCH_LIST];
} bench_list;

typedef struct bench_texts {
    int count;
    const char *value[BENCH_FILES];
} bench_texts;

/* Sums over the inner dimension of `gemm`: as the layer would do it, one chain, or eight virtual ranks and their
 * tree. */
typedef enum bench_order { BENCH_ORDER_LAYER = 0, BENCH_ORDER_CHAIN, BENCH_ORDER_TREE } bench_order;

typedef enum bench_scaling { BENCH_STRONG = 1, BENCH_WEAK, BENCH_BOTH } bench_scaling;

/* Zero, or an empty list, means "not given": each command puts its own default there. Texts point into argv. */
typedef struct bench_options {
    /* where it runs */
    bench_list ranks;
    int64_t threads;
    bench_list thread_counts; /* sweep */
    int64_t isa; /* tp_isa */
    int64_t device; /* tp_device */
    int64_t device_index, devices;
    const char *plugin;
    int64_t sums; /* tp_sum_order */
    bool tf32;
    int64_t transport; /* tp_transport */
    int64_t peer_kernels; /* tp_peer_kernels */
    bool check;
    int64_t seed;
    /* what it runs on */
    bench_list dtypes;
    const char *model;
    int64_t family; /* tp_model_family + 1 */
    int64_t layers, hidden, heads, kv_heads, ffn, vocabulary, positions;
    int64_t activation; /* tp_activation + 1 */
    int64_t kind;       /* tp_linear_kind + 1 */
    int64_t window;
    int64_t batch, sequence, microbatch;
    bool sequence_parallel;
    double dropout;
    bench_texts text;
    /* training */
    int64_t steps, weak_steps;
    double learning_rate;
    int64_t scaling; /* bench_scaling */
    bool dry_run, one_by_one;
    const char *python, *peer_settings; /* of --peer torch */
    double patience;
    double near_seconds; /* of collective --peer */
    /* gemm */
    const char *shapes;
    bench_list variants, callers;
    int64_t order; /* bench_order + 1 */
    bool pack_in_call;
    int64_t peer; /* gemm, model; 0: none; 1: onednn, torch */
    /* collective */
    int64_t begin_bytes, end_bytes, increment_bytes;
    double factor;
    bench_list operations, algorithms, places;
    int64_t reduce; /* tp_reduce_op + 1 */
    double link_latency, link_bandwidth; /* from `link` */
    bool link_gemm;
    int64_t iterations;
    bench_list peers; /* libraries to compare with; collective: bench_mpi_library */
    /* plans */
    bench_list overlaps, patterns, chunk_counts;
    bench_list token_counts;
    bool verify, print_text, run, explain, one_lane;
    int64_t rows, cols, inner, plan_bytes;
    double gemm_ms, compute_ms;
    const char *only;
    const char *link, *machine_file, *out, *svg, *trace, *plan_file;
    /* timing */
    int64_t samples, warmup;
    double seconds;
    bool no_check;
    /* output; "-" is standard output */
    const char *json, *csv, *plot;
    bool help;
} bench_options;

/* How an option's text is read. */
typedef enum bench_option_kind {
    BENCH_OPTION_FLAG,    /* bool */
    BENCH_OPTION_INTEGER, /* int64_t, in [minimum, maximum] */
    BENCH_OPTION_BYTES,   /* int64_t with K, M or G */
    BENCH_OPTION_REAL,    /* double, in [minimum, maximum] */
    BENCH_OPTION_TEXT,    /* const char * */
    BENCH_OPTION_TEXTS,   /* bench_texts; may be repeated */
    BENCH_OPTION_OUTPUT,  /* const char *; a missing value is "-" */
    BENCH_OPTION_CHOICE,  /* int64_t: minimum + place in `choices` */
    BENCH_OPTION_INTEGERS, /* bench_list, each in [minimum, maximum] */
    BENCH_OPTION_CHOICES   /* bench_list: minimum + place in `choices`; "all" is every one */
} bench_option_kind;

typedef struct bench_option {
    const char *name; /* without dashes */
    char letter;      /* the short form that nccl-tests has for it; 0: none */
    bench_option_kind kind;
    size_t offset; /* in bench_options */
    unsigned commands;
    double minimum, maximum;
    const char *const *choices; /* up to a NULL; "" entries can't be chosen */
    const char *argument;       /* its name in the help */
    const char *help;
} bench_option;

/* All options, up to one without a name. */
extern const bench_option bench_option_table[];

/* Reads argv[0..count) as options of one command (a BENCH_ bit). On failure message says what is wrong, with both
 * numbers. */
bool bench_options_read(bench_options *options, unsigned command, const char *command_name, int count, char **argv,
                        char message[BENCH_MESSAGE]);

/* The option of that name (or "-x" letter) that a command knows, or NULL. */
const bench_option *bench_option_find(const char *name, unsigned command);

/* The word nearest to `word` by edit distance, NULL if none is near. `words` ends with NULL. */
const char *bench_nearest(const char *word, const char *const *words);
int bench_edit_distance(const char *a, const char *b);

/* "64", "4K", "1.5M", "2G" as bytes. */
bool bench_parse_bytes(const char *text, int64_t *bytes);

/* "LATENCY,BANDWIDTH": seconds and bytes a second, or with units: "5us,2GB/s". False if it isn't that. */
bool bench_parse_link(const char *text, tp_link *link);
/* The same, and "gemm" or "LATENCY,gemm": a bandwidth by which transfers take as long as the GEMMs beside them; *gemm
 * says which. */
bool bench_parse_link_or_gemm(const char *text, tp_link *link, bool *gemm);

/* Gives a list a default if it is empty. */
void bench_list_default(bench_list *list, int count, const int64_t *values);

/* Writes a message in printf's manner and returns false. */
bool bench_say(char message[BENCH_MESSAGE], const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Names by place, ending with NULL; those of dtypes and instruction sets are the library's own. */
extern const char *const bench_dtype_names[];
extern const char *const bench_isa_names[];
extern const char *const bench_device_names[];
extern const char *const bench_sums_names[];
extern const char *const bench_transport_names[];
extern const char *const bench_peer_kernels_names[];
extern const char *const bench_variant_names[];
extern const char *const bench_peer_names[];
extern const char *const bench_model_peer_names[];
extern const char *const bench_operation_names[];
extern const char *const bench_algorithm_names[];
extern const char *const bench_reduce_names[];
extern const char *const bench_place_names[];
extern const char *const bench_mpi_names[];
extern const char *const bench_activation_names[];
extern const char *const bench_kind_names[];
extern const char *const bench_family_names[];
extern const char *const bench_overlap_names[];
extern const char *const bench_pattern_names[];

#endif
