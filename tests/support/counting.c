#include "counting.h"

#include <stdlib.h>
#include <string.h>

/* In front of what is given out, for its release. */
typedef struct block_head {
    _Alignas(64) size_t bytes;
} block_head;

static void *count_allocate(void *user, size_t bytes, size_t alignment)
{
    tpt_counting *counting = user;
    long long call = atomic_fetch_add(&counting->calls, 1) + 1;
    if (call == counting->fail_at || (counting->fail_later && call > counting->fail_at))
        return NULL;
    block_head *head = alignment == sizeof *head ? aligned_alloc(alignment, sizeof *head + bytes / 64 * 64 + 64) : NULL;
    if (head == NULL)
        return NULL;
    head->bytes = bytes;
    memset(head + 1, 0x7f, bytes); /* 3.4e38: whoever reads what was never written will show it */
    atomic_fetch_add(&counting->live, 1);
    return head + 1;
}

static void count_release(void *user, void *memory, size_t bytes)
{
    tpt_counting *counting = user;
    block_head *head = memory;
    if (head == NULL)
        return;
    atomic_fetch_sub(&counting->live, 1);
    head--;
    if (head->bytes != bytes)
        atomic_fetch_add(&counting->other_sizes, 1);
    free(head);
}

tp_allocator tpt_counting_allocator(tpt_counting *counting)
{
    return (tp_allocator){count_allocate, count_release, counting};
}
