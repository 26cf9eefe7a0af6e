#include "layers/attention.h"

static tp_range kv_range(tp_range heads, int64_t readers)
{
    if (heads.begin == heads.end)
        return (tp_range){heads.begin / readers, heads.begin / readers};
    return (tp_range){heads.begin / readers, (heads.end - 1) / readers + 1};
}

/* How many of `parts` equal dealings of the query heads read this kv head. */
static int count_holders(int64_t heads, int64_t readers, int64_t parts, int64_t kv_head)
{
    int holders = 0;
    for (int64_t p = 0; p < parts; p++) {
        tp_range kv = kv_range(tp_shard_range(heads, parts, p), readers);
        holders += kv.begin <= kv_head && kv_head < kv.end;
    }
    return holders;
}

static void fill_slots(tpi_head_map *map, int64_t total_heads, int64_t readers, tp_range virtual_ranks, int64_t count)
{
    int64_t kv_here = map->kv_heads.end - map->kv_heads.begin;
    for (int64_t i = 0; i < kv_here * map->blocks; i++)
        map->slot_of[i] = -1;
    map->slots = 0;
    for (int64_t v = virtual_ranks.begin; v < virtual_ranks.end; v++) {
        tp_range heads = tp_shard_range(total_heads, count, v);
        for (int64_t head = heads.begin; head < heads.end; head++) {
            int64_t kv = head / readers - map->kv_heads.begin;
            int32_t *slot = &map->slot_of[kv * map->blocks + (v - virtual_ranks.begin)];
            if (*slot < 0)
                *slot = map->slots++;
            map->kv_of_head[head - map->heads.begin] = (int32_t)kv;
            map->slot_of_head[head - map->heads.begin] = *slot;
        }
    }
}

static void carve(tpi_head_map *map, tpi_carve *carve, int64_t heads, int64_t kv_heads)
{
    map->kv_of_head = tpi_carve_take(carve, (size_t)heads * sizeof *map->kv_of_head);
    map->slot_of_head = tpi_carve_take(carve, (size_t)heads * sizeof *map->slot_of_head);
    map->slot_of = tpi_carve_take(carve, (size_t)(kv_heads * map->blocks) * sizeof *map->slot_of);
    map->holders = tpi_carve_take(carve, (size_t)kv_heads * sizeof *map->holders);
    map->shared_index = tpi_carve_take(carve, (size_t)kv_heads * sizeof *map->shared_index);
}

tp_status tpi_head_map_create(tp_ctx *ctx, int64_t heads, int64_t kv_heads, tpi_head_map *out)
{
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    int ranks = tp_comm_size(group), rank = tp_comm_rank(group);
    int64_t readers = heads / kv_heads, count;
    tp_range mine = tp_shard_virtual(ranks, rank, &count);
    *out = (tpi_head_map){.heads = tp_shard_range(heads, ranks, rank), .blocks = (int)(mine.end - mine.begin)};
    out->kv_heads = kv_range(out->heads, readers);
    int64_t kv_here = out->kv_heads.end - out->kv_heads.begin;
    tpi_carve size = {NULL, 0};
    carve(out, &size, out->heads.end - out->heads.begin, kv_here);
    out->bytes = size.used;
    out->memory = tpi_host_allocate(ctx, out->bytes);
    if (out->memory == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "head map: out of memory");
    tpi_carve pieces = {out->memory, 0};
    carve(out, &pieces, out->heads.end - out->heads.begin, kv_here);
    fill_slots(out, heads, readers, mine, count);
    for (int64_t kv = 0; kv < kv_heads; kv++) {
        bool shared = count_holders(heads, readers, ranks, kv) > 1;
        int64_t here = kv - out->kv_heads.begin;
        if (here >= 0 && here < kv_here) {
            out->holders[here] = count_holders(heads, readers, count, kv);
            out->shared_index[here] = shared ? out->shared : -1;
        }
        out->shared += shared;
    }
    return TP_OK;
}

void tpi_head_map_destroy(tp_ctx *ctx, tpi_head_map *map)
{
    if (map->memory != NULL)
        tpi_host_release(ctx, map->memory, map->bytes);
}
