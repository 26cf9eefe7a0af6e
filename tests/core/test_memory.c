/* Memory of a context: counts, allocators, every Nth allocation failing, and the arena. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>

#include "core/context.h"

/* An allocator that counts, checks what it is given back, and fails the call numbered fail_at. */
typedef struct ledger {
    int calls, fail_at; /* 0: never */
    int64_t blocks, bytes;
    bool wrong;
} ledger;

static void *ledger_allocate(void *user, size_t bytes, size_t alignment)
{
    ledger *self = user;
    if (++self->calls == self->fail_at)
        return NULL;
    self->wrong = self->wrong || alignment < 64 || bytes % alignment != 0;
    size_t *memory = aligned_alloc(alignment, bytes + alignment);
    memset(memory, 0xa5, bytes + alignment);
    *memory = bytes;
    self->blocks++;
    self->bytes += (int64_t)bytes;
    return (char *)memory + alignment;
}

static void ledger_release(void *user, void *memory, size_t bytes)
{
    ledger *self = user;
    char *block = (char *)memory - 64;
    self->wrong = self->wrong || *(size_t *)(void *)block != bytes;
    self->blocks--;
    self->bytes -= (int64_t)bytes;
    free(block);
}

static tp_allocator of(ledger *self)
{
    return (tp_allocator){ledger_allocate, ledger_release, self};
}

static void fail_every_allocation(tp_ctx_desc desc)
{
    ledger self = {0};
    desc.allocator = of(&self);
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK);
    int needed = self.calls;
    cr_assert_geq(needed, 3);
    tp_ctx_destroy(ctx);
    cr_assert_eq(self.blocks, 0);
    for (int n = 1; n <= needed; n++) {
        self = (ledger){.fail_at = n};
        cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_ERR_MEMORY, "allocation %d", n);
        cr_assert_null(ctx);
        cr_assert_not_null(strstr(tp_last_message(), "memory"), "%s", tp_last_message());
        cr_assert_eq(self.blocks, 0, "allocation %d of %d: %d blocks left", n, needed, (int)self.blocks);
        cr_assert_not(self.wrong);
    }
}

Test(memory, every_allocation_of_create_may_fail)
{
    fail_every_allocation((tp_ctx_desc){.threads = 1});
    fail_every_allocation((tp_ctx_desc){.threads = 3});
    fail_every_allocation((tp_ctx_desc){.threads = 2, .lane_delay_seed = 5});
}

typedef struct rank_of_two {
    tp_world *world;
    int rank;
    ledger ledger;
    tp_status status;
} rank_of_two;

static void *create_rank(void *argument)
{
    rank_of_two *self = argument;
    tp_ctx *ctx = NULL;
    tp_ctx_desc desc = {.threads = 1, .world = self->world, .rank = self->rank, .allocator = of(&self->ledger)};
    self->status = tp_ctx_create(&desc, &ctx);
    tp_ctx_destroy(ctx);
    return NULL;
}

/* Rank 1 fails at its allocation n (0: none); returns how many it made. */
static int create_two(int n)
{
    rank_of_two ranks[2] = {{.rank = 0}, {.rank = 1, .ledger.fail_at = n}};
    tp_world *world;
    cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = 2}, &world), TP_OK);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        ranks[i].world = world;
        cr_assert_eq(pthread_create(&threads[i], NULL, create_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    tp_world_destroy(world);
    for (int i = 0; i < 2; i++)
        cr_assert(ranks[i].ledger.blocks == 0 && !ranks[i].ledger.wrong, "allocation %d, rank %d", n, i);
    cr_assert_eq(ranks[1].status, n == 0 ? TP_OK : TP_ERR_MEMORY, "allocation %d", n);
    /* The peer is told, unless it had all it needed before. */
    tp_status told = ranks[0].status;
    cr_assert(told == TP_OK || (n > 0 && (told == TP_ERR_PEER || told == TP_ERR_MEMORY)), "allocation %d", n);
    return ranks[1].ledger.calls;
}

Test(memory, a_rank_without_memory_does_not_hang_its_peer)
{
    int needed = create_two(0);
    for (int n = 1; n <= needed; n++)
        create_two(n);
}

Test(memory, counts_and_peaks)
{
    ledger self = {0};
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1, .allocator = of(&self)}, &ctx), TP_OK);
    void *first, *second;
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_PARAM, 1000, &first), TP_OK);
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_PARAM, 24, &second), TP_OK);
    cr_assert_eq((uintptr_t)first % 64, 0u);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_PARAM).bytes, 1024u);
    tp_ctx_release(ctx, TP_MEMORY_PARAM, first, 1000);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_PARAM).bytes, 24u);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_PARAM).peak, 1024u);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_SAVED).peak, 0u);
    tp_ctx_memory_reset_peak(ctx);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_PARAM).peak, 24u);
    tp_ctx_release(ctx, TP_MEMORY_PARAM, second, 24);
    void *nothing;
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_SAVED, 0, &nothing), TP_OK);
    cr_assert_not_null(nothing);
    tp_ctx_release(ctx, TP_MEMORY_SAVED, nothing, 0);
    tp_ctx_release(ctx, TP_MEMORY_SAVED, NULL, 10); /* nothing happens */
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_SAVED).bytes, 0u);
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_KINDS, 8, &nothing), TP_ERR_ARGUMENT);
    tp_ctx_destroy(ctx);
    cr_assert(self.blocks == 0 && self.bytes == 0 && !self.wrong);
}

Test(memory, too_much_is_refused_and_breaks_nothing)
{
    ledger self = {0};
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1, .allocator = of(&self)}, &ctx), TP_OK);
    void *memory;
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_SAVED, SIZE_MAX, &memory), TP_ERR_MEMORY);
    cr_assert_null(memory);
    self.fail_at = self.calls + 1;
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_SAVED, 777, &memory), TP_ERR_MEMORY);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "777 bytes"));
    cr_assert_eq(tp_ctx_failure(ctx), TP_OK);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_SAVED).peak, 0u);
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_SAVED, 777, &memory), TP_OK);
    tp_ctx_release(ctx, TP_MEMORY_SAVED, memory, 777);
    tp_ctx_destroy(ctx);
}

Test(memory, big_blocks_of_the_system)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    size_t bytes = ((size_t)9 << 20) + 1;
    char *memory;
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, bytes, (void **)&memory), TP_OK);
    memset(memory, 1, bytes);
    cr_assert_eq((uintptr_t)memory % ((uintptr_t)2 << 20), 0u);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, bytes);
    tp_ctx_destroy(ctx);
}

/* One step of a loop: nested marks, pieces small and large; every piece is written over its whole length. */
static void step(tp_ctx *ctx)
{
    tpi_arena_mark outer = tpi_arena_get_mark(&ctx->scratch);
    void *kept;
    cr_assert_eq(tpi_scratch(ctx, 1000, &kept), TP_OK);
    memset(kept, 7, 1000);
    for (size_t i = 0; i < 12; i++) {
        tpi_arena_mark inner = tpi_arena_get_mark(&ctx->scratch);
        for (size_t j = 0; j < 4; j++) {
            size_t bytes = (i * 4001 + j * 77777) * (i % 3 + 1);
            void *piece;
            cr_assert_eq(tpi_scratch(ctx, bytes, &piece), TP_OK);
            cr_assert_eq((uintptr_t)piece % 64, 0u);
            memset(piece, (int)(i + j), bytes);
        }
        tpi_arena_release(&ctx->scratch, inner);
    }
    for (size_t i = 0; i < 1000; i++)
        cr_assert_eq(((char *)kept)[i], 7);
    tpi_arena_release(&ctx->scratch, outer);
}

Test(memory, arena_allocates_in_the_first_step_only)
{
    ledger self = {0};
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1, .allocator = of(&self)}, &ctx), TP_OK);
    step(ctx);
    int calls = self.calls;
    size_t peak = tp_ctx_memory(ctx, TP_MEMORY_SCRATCH).peak;
    for (int i = 0; i < 5; i++)
        step(ctx);
    cr_assert_eq(self.calls, calls);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_SCRATCH).peak, peak);
    tp_ctx_destroy(ctx);
    cr_assert_eq(self.blocks, 0);
}

Test(memory, arena_reuses_released_memory)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    void *first, *again, *second;
    cr_assert_eq(tpi_scratch(ctx, 100, &first), TP_OK);
    cr_assert_eq(tpi_scratch(ctx, 100, &second), TP_OK);
    cr_assert_eq((char *)second - (char *)first, 128);
    tpi_arena_release(&ctx->scratch, mark);
    cr_assert_eq(tpi_scratch(ctx, 5000, &again), TP_OK);
    cr_assert_eq(again, first);
    tp_tensor tensor;
    cr_assert_eq(tpi_scratch_tensor(ctx, TP_DTYPE_BF16, 3, 5, &tensor), TP_OK);
    cr_assert(tensor.data && tensor.shape[0] == 3 && tensor.shape[1] == 5 && tensor.dtype == TP_DTYPE_BF16);
    cr_assert_eq(tpi_scratch_tensor(ctx, TP_DTYPE_F32, INT64_MAX, 5, &tensor), TP_ERR_MEMORY);
    cr_assert_eq(tp_ctx_failure(ctx), TP_ERR_MEMORY);
    tp_ctx_destroy(ctx);
}

Test(memory, carving_counts_first)
{
    tpi_carve counting = {0};
    cr_assert_null(tpi_carve_take(&counting, 100));
    cr_assert_null(tpi_carve_take(&counting, 0));
    cr_assert_null(tpi_carve_take(&counting, 64));
    cr_assert_eq(counting.used, 192u);
    _Alignas(64) char memory[192];
    tpi_carve carve = {.memory = memory};
    cr_assert_eq(tpi_carve_take(&carve, 100), memory);
    cr_assert_eq(tpi_carve_take(&carve, 0), memory + 128);
    cr_assert_eq(tpi_carve_take(&carve, 64), memory + 128);
    cr_assert_eq(carve.used, 192u);
}
