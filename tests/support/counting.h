/* An allocator that counts, gives poisoned memory, and fails when told to. */
#ifndef TPT_COUNTING_H
#define TPT_COUNTING_H

#include <stdatomic.h>
#include <tp/context.h>

typedef struct tpt_counting {
    atomic_llong calls, live; /* allocations so far, and not released yet */
    atomic_llong other_sizes; /* releases of another size than was asked for */
    long long fail_at;        /* the allocation with this number (from 1) fails; 0: none */
    bool fail_later;          /* and so do all after it */
} tpt_counting;

tp_allocator tpt_counting_allocator(tpt_counting *counting);

#endif
