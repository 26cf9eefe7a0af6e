#include "layers/record.h"

#include <stdalign.h>
#include <string.h>

/* More passes than this are never under way at once. */
#define MOST_RECORDS 256

struct tpi_record {
    tpi_record *next;
    const void *memory;
    alignas(16) unsigned char content[];
};

static size_t whole_bytes(const tpi_records *records)
{
    return sizeof(tpi_record) + records->bytes;
}

/* The link to the record of this memory, or to the end of the list. */
static tpi_record **link_of(tpi_records *records, const void *memory)
{
    tpi_record **link = &records->first;
    while (*link && (*link)->memory != memory)
        link = &(*link)->next;
    return link;
}

static tpi_record **last_of(tpi_records *records)
{
    tpi_record **link = &records->first;
    while ((*link)->next)
        link = &(*link)->next;
    return link;
}

static tpi_record *take(tpi_records *records, const void *memory)
{
    tpi_record **link = link_of(records, memory);
    if (!*link && records->count == MOST_RECORDS)
        link = last_of(records);
    tpi_record *record = *link;
    if (record) {
        *link = record->next;
        return record;
    }
    record = tpi_host_allocate(records->ctx, whole_bytes(records));
    records->count += record != NULL;
    return record;
}

tp_status tpi_record_make(tpi_records *records, const void *memory, void **out)
{
    *out = NULL;
    tpi_record *record = take(records, memory);
    if (!record)
        return tpi_refuse(records->ctx, TP_ERR_MEMORY, "module: no memory for a record of %zu bytes", records->bytes);
    memset(record, 0, whole_bytes(records));
    record->memory = memory;
    record->next = records->first;
    records->first = record;
    *out = record->content;
    return TP_OK;
}

tp_status tpi_record_find(const tpi_records *records, const void *memory, void **out)
{
    for (tpi_record *record = records->first; record; record = record->next)
        if (record->memory == memory) {
            *out = record->content;
            return TP_OK;
        }
    *out = NULL;
    return tpi_refuse(records->ctx, TP_ERR_STATE, "module: nothing was saved in the memory at %p", memory);
}

void tpi_records_free(tpi_records *records)
{
    while (records->first) {
        tpi_record *record = records->first;
        records->first = record->next;
        tpi_host_release(records->ctx, record, whole_bytes(records));
    }
    records->count = 0;
}
