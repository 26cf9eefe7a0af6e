/* Token data: files mapped read-only and read as one stream. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tp/data.h>

#include "core/context.h"

enum {
    LLMC_HEADER_INTS = 256,
    LLMC_HEADER_BYTES = LLMC_HEADER_INTS * 4,
    LLMC_MAGIC_GPT2 = 20240520,
    LLMC_VERSION_GPT2 = 1,
    LLMC_MAGIC_LLAMA3 = 20240801,
    LLMC_VERSION_LLAMA3 = 7
};

typedef struct data_file {
    unsigned char *bytes; /* the whole file */
    size_t size;
    size_t header;     /* bytes before the first token */
    int token_bytes;   /* 1, 2 or 4 */
    int64_t tokens;
    int64_t first;     /* place of its first token in the stream */
    const char *path;  /* only while opening */
    tp_data_format format;
} data_file;

struct tp_data {
    int files;
    int64_t tokens, vocabulary;
    data_file file[];
};

static const char *const format_names[] = {
    [TP_DATA_AUTO] = "auto", [TP_DATA_TEXT] = "text", [TP_DATA_NANOGPT] = "nanoGPT", [TP_DATA_LLMC] = "llm.c"};

static tp_status file_error(const data_file *file, const char *what)
{
    return tpi_message(TP_ERR_IO, "data: %s \"%s\": %s", what, file->path, strerror(errno));
}

static tp_status map_descriptor(data_file *file, int descriptor)
{
    struct stat info;
    if (fstat(descriptor, &info) != 0)
        return file_error(file, "cannot examine");
    if (!S_ISREG(info.st_mode))
        return tpi_message(TP_ERR_IO, "data: \"%s\" is not a regular file", file->path);
    if (info.st_size == 0)
        return tpi_message(TP_ERR_FORMAT, "data: \"%s\" is empty: 0 bytes, at least 1 token is needed", file->path);
    file->size = (size_t)info.st_size;
    void *bytes = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED)
        return file_error(file, "cannot map");
    file->bytes = bytes;
    return TP_OK;
}

static tp_status map_file(data_file *file)
{
    /* Not blocking: opening a FIFO would wait for its writer, only to be refused after that. */
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0)
        return file_error(file, "cannot open");
    tp_status status = map_descriptor(file, descriptor);
    close(descriptor);
    return status;
}

static uint32_t little_endian(const unsigned char *bytes, int count)
{
    uint32_t value = 0;
    for (int i = 0; i < count; i++)
        value |= (uint32_t)bytes[i] << 8 * i;
    return value;
}

static bool has_llmc_magic(const data_file *file)
{
    if (file->size < 4)
        return false;
    uint32_t magic = little_endian(file->bytes, 4);
    return magic == LLMC_MAGIC_GPT2 || magic == LLMC_MAGIC_LLAMA3;
}

static tp_data_format detect(const data_file *file)
{
    if (has_llmc_magic(file))
        return TP_DATA_LLMC;
    size_t length = strlen(file->path);
    return length >= 4 && strcmp(file->path + length - 4, ".bin") == 0 ? TP_DATA_NANOGPT : TP_DATA_TEXT;
}

/* The header of llm.c: magic, version, number of tokens, zeros. */
static tp_status read_llmc_header(data_file *file)
{
    if (file->size < LLMC_HEADER_BYTES)
        return tpi_message(TP_ERR_FORMAT, "data: \"%s\": file of %zu bytes is shorter than its header of %d",
                           file->path, file->size, (int)LLMC_HEADER_BYTES);
    uint32_t magic = little_endian(file->bytes, 4);
    if (!has_llmc_magic(file))
        return tpi_message(TP_ERR_FORMAT, "data: \"%s\": magic is %" PRIu32 ", not %d or %d", file->path, magic,
                           (int)LLMC_MAGIC_GPT2, (int)LLMC_MAGIC_LLAMA3);
    uint32_t version = little_endian(file->bytes + 4, 4);
    uint32_t expected = magic == LLMC_MAGIC_GPT2 ? LLMC_VERSION_GPT2 : LLMC_VERSION_LLAMA3;
    if (version != expected)
        return tpi_message(TP_ERR_FORMAT,
                           "data: \"%s\": version is %" PRIu32 ", magic %" PRIu32 " has version %" PRIu32, file->path,
                           version, magic, expected);
    int64_t tokens = (int32_t)little_endian(file->bytes + 8, 4);
    file->header = LLMC_HEADER_BYTES;
    file->token_bytes = magic == LLMC_MAGIC_GPT2 ? 2 : 4;
    size_t rest = file->size - LLMC_HEADER_BYTES;
    if (tokens < 1 || (size_t)tokens * (size_t)file->token_bytes != rest)
        return tpi_message(TP_ERR_FORMAT,
                           "data: \"%s\": header counts %" PRId64 " tokens of %d bytes, the file has %zu bytes of them",
                           file->path, tokens, file->token_bytes, rest);
    return TP_OK;
}

static tp_status read_layout(data_file *file, tp_data_format format)
{
    file->format = format == TP_DATA_AUTO ? detect(file) : format;
    if (file->format == TP_DATA_LLMC) {
        TPI_TRY(read_llmc_header(file));
    } else {
        file->token_bytes = file->format == TP_DATA_NANOGPT ? 2 : 1;
    }
    size_t rest = file->size - file->header;
    if (rest % (size_t)file->token_bytes != 0)
        return tpi_message(TP_ERR_FORMAT, "data: \"%s\": %zu bytes are no whole number of tokens of %d bytes",
                           file->path, rest, file->token_bytes);
    file->tokens = (int64_t)(rest / (size_t)file->token_bytes);
    return TP_OK;
}

static uint32_t token_of(const data_file *file, int64_t index)
{
    return little_endian(file->bytes + file->header + (size_t)index * (size_t)file->token_bytes, file->token_bytes);
}

static tp_status find_vocabulary(const data_file *file, int64_t *vocabulary)
{
    if (file->format == TP_DATA_TEXT) {
        *vocabulary = *vocabulary > 256 ? *vocabulary : 256;
        return TP_OK;
    }
    uint32_t largest = 0;
    for (int64_t i = 0; i < file->tokens; i++) {
        uint32_t token = token_of(file, i);
        largest = token > largest ? token : largest;
    }
    if (largest >= INT32_MAX)
        return tpi_message(TP_ERR_FORMAT, "data: \"%s\": token %" PRIu32 " is larger than %d", file->path, largest,
                           INT32_MAX - 1);
    *vocabulary = *vocabulary > (int64_t)largest + 1 ? *vocabulary : (int64_t)largest + 1;
    return TP_OK;
}

static tp_status open_file(tp_data *data, int index, const char *path, tp_data_format format)
{
    data_file *file = &data->file[index];
    file->path = path;
    TPI_TRY(map_file(file));
    TPI_TRY(read_layout(file, format));
    if (file->format != data->file[0].format)
        return tpi_message(TP_ERR_FORMAT, "data: \"%s\" is %s but \"%s\" is %s", path, format_names[file->format],
                           data->file[0].path, format_names[data->file[0].format]);
    TPI_TRY(find_vocabulary(file, &data->vocabulary));
    file->first = data->tokens;
    data->tokens += file->tokens;
    return TP_OK;
}

static tp_status check_arguments(const char *const *paths, int count, tp_data_format format)
{
    if (paths == NULL || count < 1)
        return tpi_message(TP_ERR_ARGUMENT, "data: count is %d, at least 1 file is needed", count);
    if ((int)format < 0 || format > TP_DATA_LLMC)
        return tpi_message(TP_ERR_ARGUMENT, "data: format is %d, not in 0..%d", (int)format, (int)TP_DATA_LLMC);
    for (int i = 0; i < count; i++)
        if (paths[i] == NULL)
            return tpi_message(TP_ERR_ARGUMENT, "data: path %d of %d is NULL", i, count);
    return TP_OK;
}

tp_status tp_data_open(const char *const *paths, int count, tp_data_format format, tp_data **out)
{
    TPI_TRY(tpi_given(NULL, "tp_data_open: out", out));
    *out = NULL;
    TPI_TRY(check_arguments(paths, count, format));
    tp_data *data = calloc(1, sizeof *data + (size_t)count * sizeof data->file[0]);
    if (data == NULL)
        return tpi_message(TP_ERR_MEMORY, "data: no memory for a list of %d files", count);
    data->files = count;
    for (int i = 0; i < count; i++) {
        tp_status status = open_file(data, i, paths[i], format);
        if (status != TP_OK) {
            tp_data_close(data);
            return status;
        }
    }
    for (int i = 0; i < count; i++)
        data->file[i].path = NULL;
    *out = data;
    return TP_OK;
}

void tp_data_close(tp_data *data)
{
    if (data == NULL)
        return;
    for (int i = 0; i < data->files; i++)
        if (data->file[i].bytes != NULL)
            munmap(data->file[i].bytes, data->file[i].size);
    free(data);
}

int64_t tp_data_tokens(const tp_data *data)
{
    return data->tokens;
}

int64_t tp_data_vocabulary(const tp_data *data)
{
    return data->vocabulary;
}

/* Copies tokens [at, at + count) of the stream, at < tokens, going on at the beginning past the end. */
static void copy_tokens(const tp_data *data, int64_t at, int64_t count, int32_t *out)
{
    int index = 0;
    while (at >= data->file[index].first + data->file[index].tokens)
        index++;
    int64_t place = at - data->file[index].first;
    for (int64_t i = 0; i < count; i++) {
        if (place == data->file[index].tokens) {
            index = index + 1 < data->files ? index + 1 : 0;
            place = 0;
        }
        out[i] = (int32_t)token_of(&data->file[index], place++);
    }
}

tp_status tp_data_read(const tp_data *data, int64_t at, int64_t count, int32_t *ids, int32_t *targets)
{
    TPI_TRY(tpi_given(NULL, "tp_data_read: data", data));
    TPI_TRY(tpi_given(NULL, "tp_data_read: ids", ids));
    TPI_TRY(tpi_given(NULL, "tp_data_read: targets", targets));
    if (at < 0)
        return tpi_message(TP_ERR_ARGUMENT, "data: at is %" PRId64 ", must be at least 0", at);
    if (count < 0 || count >= data->tokens)
        return tpi_message(TP_ERR_ARGUMENT,
                           "data: count is %" PRId64 ", must be in [0, %" PRId64 "), the number of tokens", count,
                           data->tokens);
    copy_tokens(data, at % data->tokens, count, ids);
    copy_tokens(data, (at % data->tokens + 1) % data->tokens, count, targets);
    return TP_OK;
}
