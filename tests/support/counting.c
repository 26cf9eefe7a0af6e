#include "counting.h"

#include <stdlib.h>
#include <string.h>

static void *count_allocate(void *user, size_t bytes, size_t alignment)
{
    tpt_counting *counting = user;
    long long call = atomic_fetch_add(&counting->calls, 1) + 1;
    if (call == counting->fail_at || (counting->fail_later && call > counting->fail_at))
        return NULL;
    void *memory = aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
    if (memory != NULL) {
        memset(memory, 0x7f, bytes); /* 3.4e38: whoever reads what was never written will show it */
        atomic_fetch_add(&counting->live, 1);
    }
    return memory;
}

static void count_release(void *user, void *memory, size_t bytes)
{
    (void)bytes;
    if (memory != NULL)
        atomic_fetch_sub(&((tpt_counting *)user)->live, 1);
    free(memory);
}

tp_allocator tpt_counting_allocator(tpt_counting *counting)
{
    return (tp_allocator){count_allocate, count_release, counting};
}
