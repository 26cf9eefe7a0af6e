/* Groups: what the ranks of one communicator share. */
#include <stdlib.h>
#include <string.h>

#include "comm/threads.h"

/* With more, everybody's looking at everybody costs more than counting. */
#define MOST_FLAGS 8

/* Where the first staging buffer begins in its page, and with TPI_STAGING_STRIDE the second: apart from quarters of
 * pages, where halves of callers' small buffers mostly begin. A load that seems to be of what was just stored, by the
 * address within the page, waits for it. */
#define PAGE ((size_t)4096)
#define STAGING_FIRST ((size_t)512)

static void *allocate_lines(size_t bytes)
{
    size_t whole = (bytes + TPI_CACHE_LINE - 1) / TPI_CACHE_LINE * TPI_CACHE_LINE;
    void *memory = aligned_alloc(TPI_CACHE_LINE, whole);
    if (memory)
        memset(memory, 0, whole);
    return memory;
}

void tpi_group_free(tpi_group *group)
{
    if (!group)
        return;
    free(group->pages);
    free(group->channels);
    free(group->seats);
    free(group->flags);
    free(group);
}

void tpi_group_fail(tpi_group *group)
{
    tpi_word_fail(&group->gate);
    for (int rank = 0; rank < group->size; rank++) {
        tpi_flag_fail(&group->flags[rank]);
        tpi_word_fail(&group->seats[rank].bell);
    }
    tpi_peers_halt(group);
}

static void world_enter(tp_world *world, tpi_group *group)
{
    pthread_mutex_lock(&world->lock);
    group->next = world->groups;
    world->groups = group;
    /* A group made after the failure must not wait for ever. */
    if (atomic_load(&world->failed) != TP_OK)
        tpi_group_fail(group);
    pthread_mutex_unlock(&world->lock);
}

static void world_leave(tp_world *world, tpi_group *group)
{
    pthread_mutex_lock(&world->lock);
    for (tpi_group **link = &world->groups; *link; link = &(*link)->next)
        if (*link == group) {
            *link = group->next;
            break;
        }
    pthread_mutex_unlock(&world->lock);
}

/* The group belongs to no context: the last rank to leave frees it, whichever that is. */
tpi_group *tpi_group_create(tp_world *world, const int *world_ranks, int size)
{
    size_t ranks = (size_t)size;
    tpi_group *group = allocate_lines(sizeof *group);
    if (!group)
        return NULL;
    group->world = world;
    group->size = size;
    atomic_init(&group->holders, size);
    group->flagged = world->flagged && size <= MOST_FLAGS;
    group->flags = allocate_lines(ranks * sizeof *group->flags);
    group->seats = allocate_lines(ranks * sizeof *group->seats);
    group->channels = allocate_lines(ranks * ranks * sizeof *group->channels);
    /* Not cleared: pages that are never used stay untouched. */
    size_t staging = STAGING_FIRST + ranks * 2 * TPI_STAGING_STRIDE;
    group->pages = aligned_alloc(PAGE, (staging + PAGE - 1) / PAGE * PAGE);
    if (!group->flags || !group->seats || !group->channels || !group->pages) {
        tpi_group_free(group);
        return NULL;
    }
    group->staging = group->pages + STAGING_FIRST;
    for (int rank = 0; rank < size; rank++)
        group->seats[rank].world_rank = world_ranks ? world_ranks[rank] : rank;
    world_enter(world, group);
    return group;
}

void tpi_group_release(tpi_group *group)
{
    if (!group || atomic_fetch_sub(&group->holders, 1) != 1)
        return;
    world_leave(group->world, group);
    tpi_group_free(group);
}
