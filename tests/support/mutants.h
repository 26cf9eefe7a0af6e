/* Plans with one fault put in: every way to change one thing of a plan. */
#ifndef TPT_MUTANTS_H
#define TPT_MUTANTS_H

#include <tp/overlap.h>

/* X(name, words) */
#define TPT_MUTATION_LIST(X)                                                                                           \
    X(WAIT_DELETED, "wait deleted")                                                                                    \
    X(WAIT_REDIRECTED, "wait redirected")                                                                              \
    X(OP_DROPPED, "op dropped")                                                                                        \
    X(OP_DOUBLED, "op doubled")                                                                                        \
    X(OPS_SWAPPED, "neighbours swapped")                                                                               \
    X(PEER_CHANGED, "peer changed") /* with the memory it names */                                                     \
    X(PIECE_MOVED, "piece moved")   /* of the op and its regions */                                                    \
    X(WORK_CHANGED, "work changed") /* of the op alone */                                                              \
    X(REGION_MOVED, "region moved") /* one region to another piece */                                                  \
    X(BUFFER_CHANGED, "buffer changed")                                                                                \
    X(MEMORY_CHANGED, "memory changed") /* a region to another rank or slot */                                         \
    X(REGION_DROPPED, "region dropped")                                                                                \
    X(REGIONS_SWAPPED, "regions swapped")                                                                              \
    X(LANE_CHANGED, "lane changed")                                                                                    \
    X(PART_CHANGED, "part changed")                                                                                    \
    X(KIND_CHANGED, "kind changed")                                                                                    \
    X(COLLECTIVE_CHANGED, "collective changed")

typedef enum tpt_mutation {
#define TPT_MUTATION_ENUM(name, words) TPT_##name,
    TPT_MUTATION_LIST(TPT_MUTATION_ENUM)
#undef TPT_MUTATION_ENUM
        TPT_MUTATIONS
} tpt_mutation;

typedef struct tpt_mutant {
    tpt_mutation mutation;
    int rank, op;
    int which; /* wait; read, or write after the reads */
    int value; /* what it becomes; meaning depends on the mutation */
} tpt_mutant;

typedef struct tpt_mutator tpt_mutator;

/* Ends the test without memory. The plan is borrowed. */
tpt_mutator *tpt_mutator_create(const tp_plan *plan);
void tpt_mutator_destroy(tpt_mutator *mutator);
int tpt_mutator_count(const tpt_mutator *mutator);
const tpt_mutant *tpt_mutator_mutant(const tpt_mutator *mutator, int index);
/* Mutant `index` as a plan, valid until the next call. */
const tp_plan *tpt_mutator_plan(tpt_mutator *mutator, int index);

const char *tpt_mutation_words(tpt_mutation mutation);

#endif
