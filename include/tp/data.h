/* Token data: bytes of any text file, or the .bin token files that nanoGPT and llm.c write. Read-only after opening. */
#ifndef TP_DATA_H
#define TP_DATA_H

#include <tp/context.h>

typedef struct tp_data tp_data;

typedef enum tp_data_format {
    TP_DATA_AUTO = 0, /* by content: an llm.c header, else .bin: nanoGPT, else text */
    TP_DATA_TEXT,     /* each byte is a token: vocabulary 256 */
    TP_DATA_NANOGPT,  /* plain uint16 tokens, little endian */
    TP_DATA_LLMC      /* 256 int32 of header (magic 20240520, version 1: uint16 tokens; 20240801, version 7: uint32),
                       * then tokens */
} tp_data_format;

TP_BEGIN_DECLS

/* paths: `count` files, read one after another as one stream. Errors: TP_ERR_IO (with the system's reason),
 * TP_ERR_FORMAT (file, field, both numbers), TP_ERR_MEMORY. */
TP_API tp_status tp_data_open(const char *const *paths, int count, tp_data_format format, tp_data **out);
TP_API void tp_data_close(tp_data *data);

TP_API int64_t tp_data_tokens(const tp_data *data);

/* Largest token + 1 (text: 256). */
TP_API int64_t tp_data_vocabulary(const tp_data *data);

/* ids = tokens [at, at + count), targets = tokens [at + 1, at + count + 1), the stream continuing at its beginning past
 * the end. count must be < tokens. Errors: TP_ERR_ARGUMENT with both numbers. */
TP_API tp_status tp_data_read(const tp_data *data, int64_t at, int64_t count, int32_t *ids, int32_t *targets);

TP_END_DECLS
#endif
