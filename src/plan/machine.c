/* A machine's figures as text: whole numbers only, so that no locale changes them. */
#include <tp/auto.h>

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/context.h"
#include "plan/auto.h"
#include "plan/render.h"

static const char footer[] = "end";
/* By device. */
static const char *const headers[] = {[TP_DEVICE_CPU] = "tp-machine 3", [TP_DEVICE_CUDA] = "tp-machine 3 cuda"};

/* Nothing that a machine tells takes longer, nor so many times as long. */
#define MOST_SECONDS 3600.0
#define MOST_THREADS 4096

/* Figures of one number, in units of `unit`. */
static const struct {
    const char *name, *field;
    size_t offset;
    double unit;
} figures[] = {
#define FIGURE(name, field, unit) {name, #field, offsetof(tp_machine, field), unit}
    FIGURE("direct_slowdown_permille", direct_slowdown, 1e-3),
    FIGURE("call_nanoseconds", call_seconds, 1e-9),
    FIGURE("transfer_nanoseconds", transfer_seconds, 1e-9),
    FIGURE("wait_nanoseconds", wait_seconds, 1e-9),
    FIGURE("lane_nanoseconds", lane_seconds, 1e-9),
    FIGURE("meet_nanoseconds", meet_seconds, 1e-9),
    FIGURE("start_nanoseconds", start_seconds, 1e-9),
    FIGURE("wake_nanoseconds", wake_seconds, 1e-9),
    FIGURE("activation_picoseconds", activation_seconds, 1e-12),
    FIGURE("copy_bytes_per_second", copy_bytes_per_second, 1),
    FIGURE("reduce_bytes_per_second", reduce_bytes_per_second, 1),
    FIGURE("memory_bytes_per_second", memory_bytes_per_second, 1),
    FIGURE("gradient_bytes_per_second", gradient_bytes_per_second, 1),
    FIGURE("link_latency_nanoseconds", link.latency_seconds, 1e-9),
    FIGURE("link_bytes_per_second", link.bytes_per_second, 1),
#undef FIGURE
};

enum { FIGURES = sizeof figures / sizeof *figures };

static const tp_dtype gemm_dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};

/* Figures by dtype and rows. */
static const struct {
    const char *name;
    size_t offset;
} curves[] = {
    {"gemm", offsetof(tp_machine, gemm)},
    {"weight", offsetof(tp_machine, weight)},
};

enum { CURVES = sizeof curves / sizeof *curves };

static tp_machine_curve *curve_at(tp_machine *machine, int kind, tp_dtype dtype)
{
    return (tp_machine_curve *)(void *)((char *)machine + curves[kind].offset) + dtype;
}

/* What figure `index` may be at most; a rate is bounded by nothing. */
static double most_of(int index)
{
    return figures[index].unit < 1 ? MOST_SECONDS : DBL_MAX;
}

static double *figure_at(tp_machine *machine, int index)
{
    return (double *)(void *)((char *)machine + figures[index].offset);
}

static tp_status check_curve(const char *what, int kind, int dtype, const tp_machine_curve *curve)
{
    char name[160];
    snprintf(name, sizeof name, "%.100s.%s[%s]", what, curves[kind].name, tp_dtype_name((tp_dtype)dtype));
    if (curve->points < 0 || curve->points > TP_MACHINE_POINTS)
        return tpi_message(TP_ERR_ARGUMENT, "%s.points is %d, must be 0 to %d", name, curve->points,
                           TP_MACHINE_POINTS);
    for (int i = 0; i < curve->points; i++) {
        double before = i > 0 ? curve->rows[i - 1] : 0;
        if (!(curve->rows[i] > before) || !isfinite(curve->rows[i]))
            return tpi_message(TP_ERR_ARGUMENT, "%s.rows[%d] is %g, must be finite and more than %g", name, i,
                               curve->rows[i], before);
        if (!(curve->flops[i] > 0)) /* without end they cost nothing */
            return tpi_message(TP_ERR_ARGUMENT, "%s.flops[%d] is %g, must be more than 0", name, i, curve->flops[i]);
    }
    return TP_OK;
}

tp_status tpi_machine_check(const char *what, const tp_machine *machine)
{
    tp_machine copy = *machine;
    if (copy.threads < 0 || copy.threads > MOST_THREADS)
        return tpi_message(TP_ERR_ARGUMENT, "%s.threads is %d, must be 0 to %d", what, copy.threads, MOST_THREADS);
    for (int i = 0; i < FIGURES; i++) {
        double figure = *figure_at(&copy, i);
        if (!(figure >= 0 && figure <= most_of(i)))
            return tpi_message(TP_ERR_ARGUMENT, "%s.%s is %g, must be 0 to %g", what, figures[i].field, figure,
                               most_of(i));
    }
    for (int kind = 0; kind < CURVES; kind++)
        for (int dtype = 0; dtype < TP_DTYPE_COUNT; dtype++)
            TPI_TRY(check_curve(what, kind, dtype, curve_at(&copy, kind, (tp_dtype)dtype)));
    return TP_OK;
}

void tp_machine_default(tp_machine *out)
{
    if (out == NULL)
        return;
    *out = (tp_machine){.name = "not measured",
                        .threads = 1,
                        .direct_slowdown = 1.02,
                        .call_seconds = 1e-6,
                        .transfer_seconds = 2e-6,
                        .wait_seconds = 5e-6,
                        .lane_seconds = 30e-6,
                        .meet_seconds = 45e-6,
                        .start_seconds = 60e-6,
                        .wake_seconds = 20e-6,
                        .activation_seconds = 1e-9,
                        .copy_bytes_per_second = 8e9,
                        .reduce_bytes_per_second = 12e9,
                        .memory_bytes_per_second = 12e9,
                        .lanes_share_cores = true};
    static const double rows[] = {1, 8, 64, 512}, share[] = {0.1, 0.5, 0.9, 1};
    for (int i = 0; i < 4; i++) {
        out->gemm[TP_DTYPE_F32].rows[i] = out->gemm[TP_DTYPE_BF16].rows[i] = rows[i];
        out->gemm[TP_DTYPE_F32].flops[i] = 8e10 * share[i];
        out->gemm[TP_DTYPE_BF16].flops[i] = 16e10 * share[i];
    }
    out->gemm[TP_DTYPE_F32].points = out->gemm[TP_DTYPE_BF16].points = 4;
}

/* Large products with a weight of 4096 x 4096 that is in no cache; few rows take as long as it is read. */
static void default_gpu(tp_machine *out)
{
    static const double rows[] = {1, 16, 64, 256, 1024, 4096};
    static const double f32[] = {0.8e12, 8e12, 14e12, 16e12, 17e12, 18e12},
                        half[] = {1.3e12, 20e12, 75e12, 180e12, 230e12, 240e12};
    *out = (tp_machine){.name = "not measured",
                        .device = TP_DEVICE_CUDA,
                        .threads = 1,
                        .direct_slowdown = 2,
                        .call_seconds = 4e-6,
                        .transfer_seconds = 8e-6,
                        .wait_seconds = 3e-6,
                        .copy_bytes_per_second = 200e9,
                        .reduce_bytes_per_second = 400e9};
    static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        tp_machine_curve *curve = &out->gemm[dtypes[d]];
        curve->points = sizeof rows / sizeof *rows;
        memcpy(curve->rows, rows, sizeof rows);
        memcpy(curve->flops, d == 0 ? f32 : half, sizeof f32);
    }
}

void tp_machine_default_of(tp_device device, tp_machine *out)
{
    if (device == TP_DEVICE_CUDA && out != NULL)
        default_gpu(out);
    else
        tp_machine_default(out);
}

/* What would end a line, or looks like its end, becomes a blank. */
static void blank_controls(char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes && name[i] != '\0'; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 127)
            name[i] = ' ';
}

/* As whole as read_number takes it: past its bounds that is the most. */
static long long whole(double figure)
{
    return figure < (double)LLONG_MAX ? llround(figure) : LLONG_MAX;
}

size_t tp_machine_print(const tp_machine *machine, char *text, size_t bytes)
{
    tpi_writer page = {.text = text, .bytes = text != NULL ? bytes : 0};
    if (machine == NULL)
        return tpi_put_end(&page);
    tp_machine copy = *machine;
    blank_controls(copy.name, sizeof copy.name);
    const char *header = headers[machine->device == TP_DEVICE_CUDA ? TP_DEVICE_CUDA : TP_DEVICE_CPU];
    tpi_put(&page, "%s\nname %.*s\nthreads %d\nlanes_share_cores %d\n", header, (int)sizeof machine->name - 1,
            copy.name, machine->threads, machine->lanes_share_cores);
    for (int i = 0; i < FIGURES; i++)
        tpi_put(&page, "%s %lld\n", figures[i].name, whole(*figure_at(&copy, i) / figures[i].unit));
    for (int kind = 0; kind < CURVES; kind++)
        for (size_t d = 0; d < sizeof gemm_dtypes / sizeof *gemm_dtypes; d++) {
            const tp_machine_curve *curve = curve_at(&copy, kind, gemm_dtypes[d]);
            for (int i = 0; i < curve->points && i < TP_MACHINE_POINTS; i++)
                tpi_put(&page, "%s %s rows %lld flops_per_second %lld\n", curves[kind].name,
                        tp_dtype_name(gemm_dtypes[d]), whole(curve->rows[i]), whole(curve->flops[i]));
        }
    tpi_put(&page, "%s\n", footer);
    return tpi_put_end(&page);
}

/* A whole number that is not negative, and nothing after it. */
static bool read_number(const char *text, const char **end, double *out)
{
    char *after;
    errno = 0;
    long long value = strtoll(text, &after, 10);
    *end = after;
    *out = (double)value;
    return after != text && errno == 0 && value >= 0;
}

/* What a text has told so far: each figure comes once. */
enum { SEEN_NAME, SEEN_THREADS, SEEN_LANES, SEEN_END, SEEN_FIGURES, SEEN = SEEN_FIGURES + FIGURES };

typedef struct reading {
    tp_machine *machine;
    bool seen[SEEN];
    char wrong[120]; /* with the last line */
} reading;

static const char not_understood[] = "is not understood", not_whole[] = "has no whole number of 0 or more in its place";

static const char *const plain_names[SEEN_FIGURES] = {"name", "threads", "lanes_share_cores", "end"};

static const char *name_of(int index)
{
    return index < SEEN_FIGURES ? plain_names[index] : figures[index - SEEN_FIGURES].name;
}

static const char *out_of_range(reading *r, const char *name, double number, double least, double most)
{
    snprintf(r->wrong, sizeof r->wrong, "has %s %.0f, must be %.0f to %.0f", name, number, least, most);
    return r->wrong;
}

/* Takes one figure. Returns what is wrong with it, or NULL. */
static const char *take_number(reading *r, int index, const char *text)
{
    const char *end;
    double number, least = index == SEEN_THREADS ? 1 : 0, most = index == SEEN_THREADS ? MOST_THREADS : 1;
    if (!read_number(text, &end, &number) || *end != '\0')
        return not_whole;
    if (index >= SEEN_FIGURES)
        most = round(most_of(index - SEEN_FIGURES) / figures[index - SEEN_FIGURES].unit);
    if (number < least || number > most)
        return out_of_range(r, name_of(index), number, least, most);
    if (index == SEEN_THREADS)
        r->machine->threads = (int)number;
    else if (index == SEEN_LANES)
        r->machine->lanes_share_cores = number > 0;
    else
        *figure_at(r->machine, index - SEEN_FIGURES) =
            fmin(number * figures[index - SEEN_FIGURES].unit, most_of(index - SEEN_FIGURES));
    return NULL;
}

/* The next point of one curve; text: what follows its dtype. */
static const char *take_point(reading *r, tp_machine_curve *curve, const char *text)
{
    const char *at = text;
    double rows, flops;
    if (!read_number(at + strlen(" rows "), &at, &rows))
        return not_whole;
    if (strncmp(at, " flops_per_second ", 18) != 0)
        return not_understood;
    if (!read_number(at + 18, &at, &flops) || *at != '\0')
        return not_whole;
    double before = curve->points > 0 ? curve->rows[curve->points - 1] : 0;
    if (curve->points == TP_MACHINE_POINTS)
        snprintf(r->wrong, sizeof r->wrong, "is point %d of its curve, which has at most %d", curve->points + 1,
                 TP_MACHINE_POINTS);
    else if (rows <= before)
        snprintf(r->wrong, sizeof r->wrong, "has rows %.0f, must be more than %.0f%s", rows, before,
                 curve->points > 0 ? " of the point before" : "");
    else if (flops <= 0)
        snprintf(r->wrong, sizeof r->wrong, "has flops_per_second %.0f, must be at least 1", flops);
    else {
        curve->rows[curve->points] = rows;
        curve->flops[curve->points++] = flops;
        return NULL;
    }
    return r->wrong;
}

static const char *read_point(reading *r, int kind, const char *text)
{
    for (size_t d = 0; d < sizeof gemm_dtypes / sizeof *gemm_dtypes; d++) {
        const char *name = tp_dtype_name(gemm_dtypes[d]);
        size_t length = strlen(name);
        if (strncmp(text, name, length) == 0 && strncmp(text + length, " rows ", 6) == 0)
            return take_point(r, curve_at(r->machine, kind, gemm_dtypes[d]), text + length);
    }
    return not_understood;
}

/* One line after the header; empty lines and # are skipped. Returns what is wrong with it, or NULL. */
static const char *read_line(reading *r, const char *line)
{
    if (*line == '\0' || *line == '#')
        return NULL;
    if (r->seen[SEEN_END])
        return "comes after the end";
    size_t length = strcspn(line, " ");
    const char *value = line + length + (line[length] == ' ');
    for (int kind = 0; kind < CURVES; kind++)
        if (length == strlen(curves[kind].name) && strncmp(line, curves[kind].name, length) == 0)
            return read_point(r, kind, value);
    for (int index = 0; index < SEEN; index++) {
        if (length != strlen(name_of(index)) || strncmp(line, name_of(index), length) != 0)
            continue;
        if (r->seen[index])
            return "comes a second time";
        r->seen[index] = true;
        if (index == SEEN_NAME)
            snprintf(r->machine->name, sizeof r->machine->name, "%s", value);
        else if (index == SEEN_END)
            return *value == '\0' ? NULL : not_understood;
        else
            return take_number(r, index, value);
        return NULL;
    }
    return not_understood;
}

static bool take_header(const char *line, tp_machine *machine)
{
    for (size_t device = 0; device < sizeof headers / sizeof *headers; device++)
        if (strcmp(line, headers[device]) == 0) {
            machine->device = (tp_device)device;
            return true;
        }
    return false;
}

/* A file that was cut, or written for another version, is none. */
static tp_status check_complete(const reading *r)
{
    if (!r->seen[SEEN_END])
        return tpi_message(TP_ERR_FORMAT, "machine: the text was cut: its last line must be '%s'", footer);
    for (int index = 0; index < SEEN; index++)
        if (!r->seen[index])
            return tpi_message(TP_ERR_FORMAT, "machine: there is no line '%s'", name_of(index));
    if (r->machine->gemm[TP_DTYPE_F32].points == 0)
        return tpi_message(TP_ERR_FORMAT, "machine: there is no line 'gemm f32 rows R flops_per_second F'");
    return TP_OK;
}

tp_status tp_machine_parse(const char *text, tp_machine *out)
{
    if (text == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_machine_parse: %s is NULL", text == NULL ? "text" : "out");
    *out = (tp_machine){.threads = 1};
    if (*text == '\0')
        return tpi_message(TP_ERR_FORMAT, "machine: the text is empty, its first line must be '%s'",
                           headers[TP_DEVICE_CPU]);
    reading r = {.machine = out};
    for (int number = 1; *text != '\0'; number++) {
        char line[256];
        size_t length = strcspn(text, "\n"), kept = length < sizeof line ? length : sizeof line - 1;
        snprintf(line, sizeof line, "%.*s", (int)kept, text);
        if (kept == length && kept > 0 && line[kept - 1] == '\r') /* lines may end as on other systems */
            line[kept - 1] = '\0';
        if (number == 1 && !take_header(line, out))
            return tpi_message(TP_ERR_FORMAT, "machine: line 1 is '%.40s', must be '%s' or '%s'", line,
                               headers[TP_DEVICE_CPU], headers[TP_DEVICE_CUDA]);
        const char *wrong = number == 1 ? NULL : kept < length ? "is too long" : read_line(&r, line);
        if (wrong != NULL)
            return tpi_message(TP_ERR_FORMAT, "machine: line %d %s: '%.60s'", number, wrong, line);
        text += length + (text[length] == '\n');
    }
    return check_complete(&r);
}

/* Opens without blocking, as a FIFO without a writer would; only regular files are taken. */
static tp_status open_regular(const char *path, FILE **out)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0)
        return tpi_message(TP_ERR_IO, "machine: %s: %s", path, strerror(errno));
    struct stat info;
    bool regular = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
    *out = regular ? fdopen(descriptor, "rb") : NULL;
    if (*out != NULL)
        return TP_OK;
    tp_status status =
        tpi_message(TP_ERR_IO, "machine: %s: %s", path, regular ? strerror(errno) : "is not a regular file");
    close(descriptor);
    return status;
}

#define MOST_BYTES 65536

tp_status tp_machine_load(const char *path, tp_machine *out)
{
    if (path == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_machine_load: %s is NULL", path == NULL ? "path" : "out");
    FILE *file;
    TPI_TRY(open_regular(path, &file));
    char *text = malloc(MOST_BYTES);
    size_t length = text != NULL ? fread(text, 1, MOST_BYTES - 1, file) : 0;
    bool failed = ferror(file) != 0, more = fgetc(file) != EOF;
    fclose(file);
    tp_status status = TP_OK;
    if (text == NULL)
        status = tpi_message(TP_ERR_MEMORY, "machine: out of memory");
    else if (failed || more || length == 0)
        status = tpi_message(TP_ERR_IO, "machine: %s: %s", path,
                             failed ? "can't be read"
                             : more ? "is too long"
                                    : "is empty");
    if (status == TP_OK) {
        text[length] = '\0';
        if (strlen(text) < length)
            status = tpi_message(TP_ERR_FORMAT, "machine: %s: byte %zu is 0", path, strlen(text));
        else
            status = tp_machine_parse(text, out);
    }
    free(text);
    return status;
}
