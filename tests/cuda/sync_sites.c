/* What a wait of a stream is for, so that the same one is known again in other work: contexts that are watched have a
 * backend table whose event_wait looks up the event in the executor's plan, in what peers posted, and in NCCL's
 * staging, and writes that down. */
#include "cuda/sync_sites.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "comm/nccl.h"
#include "comm/threads.h"
#include "core/stream.h"
#include "cuda/gpus.h"
#include "plan/execute_state.h"

enum { MOST_RECORDED = 1024 };

typedef struct recorded {
    const tpi_event *event;
    const tpi_stream *stream; /* of the last record */
} recorded;

static struct {
    pthread_mutex_t lock;
    tpi_backend table;            /* the plugin's, but for two slots */
    const tpi_backend *plugin;
    const tpt_parts *parts[TPT_MOST_THREADS];
    const tp_ctx *ctx[TPT_MOST_THREADS];
    recorded all[MOST_RECORDED];
    int count;
} watched = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct wait_of {
    const tp_ctx *ctx;
    const tpi_stream *stream;
    const tpi_event *event;
    const char *lane; /* the stream, as words */
} wait_of;

static const char *lane_of(const tpi_stream *stream)
{
    return stream == stream->ctx->compute ? "compute" : stream->name;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/* The one that the context's thread is issuing. */
static const tpi_prepared *plan_under_way(const tp_ctx *ctx)
{
    for (const tpi_prepared *p = ctx->executor != NULL ? ctx->executor->prepared : NULL; p != NULL; p = p->next)
        for (int slot = 0; slot < TPI_RUN_SLOTS; slot++)
            if (atomic_load(&p->slot[slot].busy))
                return p;
    return NULL;
}

/* NULL: none, or not known here. */
static const tpi_event *event_of(const tpi_prepared *p, int rank, int flag)
{
    int op = flag / 2;
    if (rank == p->rank)
        return flag == tpi_flag_done(op) ? p->note[op].event : p->note[op].posted;
    return p->held ? p->event[(size_t)rank * (size_t)p->flags + (size_t)flag] : NULL;
}

/* Ranks' lists are slices of one program: the third pull, say, has the same part in all of them, so ranks are not told
 * apart. An op's place in the whole list would tell them apart: of two that meet, one sends first, and the other
 * receives first. */
static void write_op(const tpi_prepared *p, const wait_of *wait, const char *plan, int rank, int flag, char *out)
{
    int op = flag / 2;
    const char *word = tp_op_name(p->plan->rank[rank].op[op].kind),
               *posted = flag == tpi_flag_posted(op) ? ", posted" : "";
    int number = 0;
    for (int i = 0; i <= op; i++)
        number += p->plan->rank[rank].op[i].kind == p->plan->rank[rank].op[op].kind;
    snprintf(out, TPT_SITE_BYTES, "%s: %s for %s %s %d%s", plan, wait->lane, rank == p->rank ? "own" : "a peer's", word,
             number, posted);
}

static bool find_in_plan(const wait_of *wait, char *out)
{
    const tpi_prepared *p = plan_under_way(wait->ctx);
    const struct tpi_executor *executor = wait->ctx->executor;
    char plan[64];
    if (p == NULL)
        return false;
    snprintf(plan, sizeof plan, "%s %s of %d%s", tp_overlap_name((tp_overlap)p->plan->algorithm),
             tp_pattern_name((tp_pattern)p->plan->pattern), p->plan->ranks,
             p->messages.message != NULL ? " in groups" : "");
    if (wait->event == executor->fork) {
        snprintf(out, TPT_SITE_BYTES, "%s: %s begins", plan, wait->lane);
        return true;
    }
    for (int lane = 0; lane < TP_LANES; lane++)
        if (executor->join[lane] != NULL && wait->event == executor->join[lane]) {
            snprintf(out, TPT_SITE_BYTES, "%s: %s ends", plan, tp_lane_name((tp_lane)lane));
            return true;
        }
    for (int rank = 0; rank < p->plan->ranks; rank++)
        for (int flag = 0; flag < 2 * p->plan->rank[rank].count; flag++)
            if (wait->event == event_of(p, rank, flag)) {
                write_op(p, wait, plan, rank, flag, out);
                return true;
            }
    return false;
}

/* ---- collectives and messages ------------------------------------------------------------------------------------ */

static int seat_of(const tpi_group *group, int world_rank)
{
    for (int seat = 0; seat < group->size; seat++)
        if (group->seats[seat].world_rank == world_rank)
            return seat;
    return -1;
}

static bool find_parcel(const tpi_group *group, int own, const tpi_event *event, char *out)
{
    for (int peer = 0; peer < group->size; peer++)
        for (int taken = 0; taken < 2; taken++) {
            const tpi_channel *channel = &group->channels[taken ? own * group->size + peer : peer * group->size + own];
            bool open = taken ? atomic_load(&channel->taken) != atomic_load(&channel->settled)
                              : atomic_load(&channel->posted) != atomic_load(&channel->taken);
            for (int i = 0; peer != own && open && i < TPI_CHANNEL_DEPTH; i++)
                if (event == (taken ? channel->parcel[i].taken : channel->parcel[i].ready)) {
                    snprintf(out, TPT_SITE_BYTES, "messages: %s",
                             taken ? "what was sent is taken" : "what is received is there");
                    return true;
                }
        }
    return false;
}

static bool find_post(const tpi_group *group, int own, const tpi_event *event, char *out)
{
    for (int peer = 0; peer < group->size; peer++) {
        const tpi_post *post = &group->seats[peer].post[group->seats[own].posts & 1];
        if (peer == own || (event != post->ready && event != post->done))
            continue;
        snprintf(out, TPT_SITE_BYTES, "%s%s: peers are %s", post->call, post->staging != NULL ? " in one shot" : "",
                 event == post->ready ? "ready" : "done");
        return true;
    }
    return false;
}

static bool find_in_groups(const wait_of *wait, char *out)
{
    if (wait->ctx->world->table != &tpi_comm_threads)
        return false;
    tp_world *world = ((tpi_thread_comm *)wait->ctx->world->state)->group->world;
    bool found = false;
    pthread_mutex_lock(&world->lock);
    for (const tpi_group *group = world->groups; group != NULL && !found; group = group->next) {
        int own = seat_of(group, wait->ctx->world->rank);
        found = own >= 0 && (find_parcel(group, own, wait->event, out) || find_post(group, own, wait->event, out));
    }
    pthread_mutex_unlock(&world->lock);
    return found;
}

static bool find_in_staging(const wait_of *wait, char *out)
{
    for (const tpi_nccl_comm *comm = wait->ctx->nccl; comm != NULL; comm = comm->next)
        if (wait->event == comm->staging_used) {
            snprintf(out, TPT_SITE_BYTES, "staging: another lane has used it");
            return true;
        }
    return false;
}

/* ---- anything else ----------------------------------------------------------------------------------------------- */

static void write_other(const wait_of *wait, const char *part, char *out)
{
    const tpi_stream *of = NULL;
    for (int i = 0; i < watched.count; i++)
        if (watched.all[i].event == wait->event)
            of = watched.all[i].stream;
    snprintf(out, TPT_SITE_BYTES, "%s: %s for %s %s", part, wait->lane,
             of == NULL || of->ctx != wait->ctx ? "a peer's" : "own", of == NULL ? "event" : lane_of(of));
}

static int number_of(const tp_ctx *ctx)
{
    int number = 0;
    while (number < TPT_MOST_THREADS && watched.ctx[number] != ctx)
        number++;
    return number;
}

static tp_status record(tpi_event *event, tpi_stream *stream)
{
    int i = 0;
    pthread_mutex_lock(&watched.lock);
    while (i < watched.count && watched.all[i].event != event)
        i++;
    if (i < MOST_RECORDED)
        watched.all[i] = (recorded){event, stream};
    watched.count += i == watched.count && i < MOST_RECORDED;
    pthread_mutex_unlock(&watched.lock);
    return watched.plugin->event_record(event, stream);
}

static tp_status wait_for(tpi_event *event, tpi_stream *stream)
{
    int number = number_of(stream->ctx);
    if (number == TPT_MOST_THREADS)
        return watched.plugin->event_wait(event, stream);
    int64_t before = tpt_gpus_thread_waits(number + 1);
    tp_status status = watched.plugin->event_wait(event, stream);
    if (before >= TPT_MOST_WAITS || tpt_gpus_thread_waits(number + 1) == before)
        return status;
    const tpt_parts *parts = watched.parts[number];
    char *out = parts->outcome->site[number][before];
    const char *part = parts->count > 0 ? parts->outcome->part[parts->count - 1] : NULL;
    const wait_of wait = {stream->ctx, stream, event, lane_of(stream)};
    pthread_mutex_lock(&watched.lock);
    if (!find_in_plan(&wait, out) && !find_in_groups(&wait, out) && !find_in_staging(&wait, out))
        write_other(&wait, part != NULL ? part : "", out);
    pthread_mutex_unlock(&watched.lock);
    return status;
}

void tpt_sites_watch(tp_ctx *ctx, const tpt_parts *parts)
{
    pthread_mutex_lock(&watched.lock);
    if (watched.plugin == NULL) {
        watched.plugin = ctx->backend;
        watched.table = *ctx->backend;
        watched.table.event_record = record;
        watched.table.event_wait = wait_for;
    }
    watched.ctx[parts->rank] = ctx;
    watched.parts[parts->rank] = parts;
    pthread_mutex_unlock(&watched.lock);
    ctx->backend = &watched.table;
}

void tpt_sites_leave(tp_ctx *ctx)
{
    int number = number_of(ctx);
    if (number == TPT_MOST_THREADS)
        return;
    ctx->backend = watched.plugin;
    watched.ctx[number] = NULL;
}
