/* The host's part of saved and delayed memory: modules keep structs of views there, and the memory itself may be a
 * device's. */
#ifndef TPI_LAYERS_RECORD_H
#define TPI_LAYERS_RECORD_H

#include "core/context.h"

typedef struct tpi_record tpi_record;

typedef struct tpi_records {
    tp_ctx *ctx;
    size_t bytes; /* of one */
    int count;
    tpi_record *first; /* made last */
} tpi_records;

/* The record of this memory, zeroed; a module's forward or backward_input begins with it. The oldest makes room when
 * there are very many. */
tp_status tpi_record_make(tpi_records *records, const void *memory, void **out);
/* That was made for this memory; refused if there is none. */
tp_status tpi_record_find(const tpi_records *records, const void *memory, void **out);
void tpi_records_free(tpi_records *records);

#endif
