#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_WORD 64
#define MAX_OPTIONS 128

bool bench_say(char message[BENCH_MESSAGE], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, BENCH_MESSAGE, format, arguments);
    va_end(arguments);
    return false;
}

void bench_list_default(bench_list *list, int count, const int64_t *values)
{
    if (list->count != 0)
        return;
    list->count = count;
    memcpy(list->value, values, (size_t)count * sizeof *values);
}

/* Levenshtein's distance, row by row. */
int bench_edit_distance(const char *a, const char *b)
{
    size_t length_a = strnlen(a, MAX_WORD), length_b = strnlen(b, MAX_WORD);
    int row[MAX_WORD + 1];
    for (size_t j = 0; j <= length_b; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= length_a; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= length_b; j++) {
            int replaced = diagonal + (a[i - 1] != b[j - 1]);
            int removed = row[j] + 1, added = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = replaced < removed ? replaced : removed;
            row[j] = added < row[j] ? added : row[j];
        }
    }
    return row[length_b];
}

const char *bench_nearest(const char *word, const char *const *words)
{
    const char *nearest = NULL;
    int distance = 0;
    for (; *words != NULL; words++) {
        int d = bench_edit_distance(word, *words);
        if (**words != '\0' && (nearest == NULL || d < distance)) {
            nearest = *words;
            distance = d;
        }
    }
    int limit = (int)strnlen(word, MAX_WORD) / 2;
    return nearest != NULL && distance <= (limit < 2 ? 2 : limit) ? nearest : NULL;
}

bool bench_parse_bytes(const char *text, int64_t *bytes)
{
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || errno != 0 || !(value >= 0))
        return false;
    const char *unit = *end != '\0' ? strchr(units, *end & ~0x20) : NULL;
    if (unit != NULL && *unit != '\0') {
        value *= pow(1024, (double)(unit - units + 1));
        end++;
    }
    if (*end != '\0' || value > 9e15)
        return false;
    *bytes = (int64_t)value;
    return true;
}

/* A number and the unit behind it. */
typedef struct unit {
    const char *name;
    double factor;
} unit;

static const unit time_units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
static const unit rate_units[] = {{"", 1}, {"B/s", 1}, {"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}};

static bool parse_with_unit(const char *text, const unit *units, size_t count, double *value)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || !(number >= 0 && number < 1e18))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(end, units[i].name) == 0) {
            *value = number * units[i].factor;
            return true;
        }
    }
    return false;
}

bool bench_parse_link_or_gemm(const char *text, tp_link *link, bool *gemm)
{
    static const double default_latency = 5e-6, longest_latency = 10;
    const char *comma = strchr(text, ',');
    char first[MAX_WORD];
    size_t length = comma != NULL ? (size_t)(comma - text) : 0;
    const char *rate = comma != NULL ? comma + 1 : text;
    *gemm = strcmp(rate, "gemm") == 0;
    *link = (tp_link){default_latency, 0};
    if (comma == NULL)
        return *gemm;
    if (length >= sizeof first)
        return false;
    memcpy(first, text, length);
    first[length] = '\0';
    if (!parse_with_unit(first, time_units, sizeof time_units / sizeof *time_units, &link->latency_seconds) ||
        link->latency_seconds > longest_latency)
        return false;
    return *gemm || parse_with_unit(rate, rate_units, sizeof rate_units / sizeof *rate_units, &link->bytes_per_second);
}

bool bench_parse_link(const char *text, tp_link *link)
{
    bool gemm;
    return bench_parse_link_or_gemm(text, link, &gemm) && !gemm;
}

static bool read_integer(const bench_option *option, const char *text, int64_t *value, char *message)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end != '\0')
        return bench_say(message, "--%s: '%s' is not a whole number", option->name, text);
    if (errno == ERANGE || (double)number < option->minimum || (double)number > option->maximum)
        return bench_say(message, "--%s: %s is outside [%.0f, %.0f]", option->name, text, option->minimum,
                         option->maximum);
    *value = number;
    return true;
}

static bool read_bytes(const bench_option *option, const char *text, int64_t *value, char *message)
{
    if (!bench_parse_bytes(text, value))
        return bench_say(message, "--%s: '%s' is not a size (64, 4K, 1M, 2G)", option->name, text);
    if ((double)*value < option->minimum || (double)*value > option->maximum)
        return bench_say(message, "--%s: %s is outside [%.0f, %.0f]", option->name, text, option->minimum,
                         option->maximum);
    return true;
}

static bool read_real(const bench_option *option, const char *text, double *value, char *message)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end != '\0' || isnan(number))
        return bench_say(message, "--%s: '%s' is not a number", option->name, text);
    if (number < option->minimum || number > option->maximum)
        return bench_say(message, "--%s: %s is outside [%g, %g]", option->name, text, option->minimum, option->maximum);
    *value = number;
    return true;
}

static bool read_choice(const bench_option *option, const char *text, int64_t *value, char *message)
{
    for (int i = 0; option->choices[i] != NULL; i++) {
        if (*option->choices[i] != '\0' && strcasecmp(text, option->choices[i]) == 0) {
            *value = (int64_t)option->minimum + i;
            return true;
        }
    }
    char known[BENCH_MESSAGE / 2] = "";
    for (int i = 0; option->choices[i] != NULL; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", *known != '\0' ? " " : "", option->choices[i]);
    }
    const char *nearest = bench_nearest(text, option->choices);
    if (nearest != NULL)
        return bench_say(message, "--%s: unknown '%s'; did you mean '%s'? (known: %s)", option->name, text, nearest,
                         known);
    return bench_say(message, "--%s: unknown '%s' (known: %s)", option->name, text, known);
}

static bool choose_all(const bench_option *option, bench_list *list)
{
    for (int i = 0; option->choices[i] != NULL; i++)
        if (*option->choices[i] != '\0')
            list->value[list->count++] = (int64_t)option->minimum + i;
    return true;
}

/* "a,b,c": each item by the reader of the option's kind. */
static bool read_list(const bench_option *option, const char *text, bench_list *list, char *message)
{
    list->count = 0;
    if (option->kind == BENCH_OPTION_CHOICES && strcasecmp(text, "all") == 0)
        return choose_all(option, list);
    for (;;) {
        char item[MAX_WORD];
        size_t length = strcspn(text, ",");
        if (length == 0 || length >= sizeof item)
            return bench_say(message, "--%s: an item of the list is %s", option->name,
                             length == 0 ? "empty" : "too long");
        if (list->count == BENCH_LIST)
            return bench_say(message, "--%s: more than %d items", option->name, BENCH_LIST);
        memcpy(item, text, length);
        item[length] = '\0';
        int64_t *value = &list->value[list->count++];
        bool good = option->kind == BENCH_OPTION_CHOICES ? read_choice(option, item, value, message)
                                                         : read_integer(option, item, value, message);
        if (!good)
            return false;
        for (int i = 0; i < list->count - 1; i++)
            if (list->value[i] == *value)
                return bench_say(message, "--%s: %s is there twice", option->name, item);
        text += length;
        if (*text == '\0')
            return true;
        text++;
    }
}

static bool read_text(const bench_option *option, const char *text, const char **value, char *message)
{
    if (*text == '\0')
        return bench_say(message, "--%s: the value is empty", option->name);
    *value = text;
    return true;
}

static bool read_value(const bench_option *option, const char *text, bench_options *options, char *message)
{
    void *field = (char *)options + option->offset;
    bench_texts *texts;
    switch (option->kind) {
    case BENCH_OPTION_FLAG: *(bool *)field = true; return true;
    case BENCH_OPTION_INTEGER: return read_integer(option, text, field, message);
    case BENCH_OPTION_BYTES: return read_bytes(option, text, field, message);
    case BENCH_OPTION_REAL: return read_real(option, text, field, message);
    case BENCH_OPTION_CHOICE: return read_choice(option, text, field, message);
    case BENCH_OPTION_INTEGERS:
    case BENCH_OPTION_CHOICES: return read_list(option, text, field, message);
    case BENCH_OPTION_TEXT:
    case BENCH_OPTION_OUTPUT: return read_text(option, text, field, message);
    case BENCH_OPTION_TEXTS:
        texts = field;
        if (texts->count == BENCH_FILES)
            return bench_say(message, "--%s: more than %d files", option->name, BENCH_FILES);
        return read_text(option, text, &texts->value[texts->count++], message);
    }
    return false;
}

const bench_option *bench_option_find(const char *name, unsigned command)
{
    for (const bench_option *option = bench_option_table; option->name != NULL; option++) {
        bool by_letter = option->letter != 0 && name[0] == '-' && name[1] == option->letter && name[2] == '\0';
        bool by_name = name[0] == '-' && name[1] == '-' && strcmp(name + 2, option->name) == 0;
        if ((by_letter || by_name) && (option->commands & command) != 0)
            return option;
    }
    return NULL;
}

/* Says what an unknown option may have meant. */
static bool unknown_option(const char *name, unsigned command, const char *command_name, char *message)
{
    const char *words[MAX_OPTIONS];
    int count = 0;
    for (const bench_option *option = bench_option_table; option->name != NULL && count < MAX_OPTIONS - 1; option++)
        if ((option->commands & command) != 0)
            words[count++] = option->name;
    words[count] = NULL;
    if (name[0] != '-')
        return bench_say(message, "'%s' is no option (options begin with --; try: tp_bench %s --help)", name,
                         command_name);
    if (bench_option_find(name, BENCH_ALL) != NULL)
        return bench_say(message, "option %s does not belong to '%s' (try: tp_bench %s --help)", name, command_name,
                         command_name);
    const char *nearest = bench_nearest(name + 1 + (name[1] == '-'), words);
    if (nearest != NULL)
        return bench_say(message, "unknown option %s; did you mean --%s?", name, nearest);
    return bench_say(message, "unknown option %s (try: tp_bench %s --help)", name, command_name);
}

/* Of two values one would go unheeded. What `given` points to is the value that came before; flags and repeatable
 * options may come again. */
static bool given_once(const bench_option *option, const char **given, const char *value, char *message)
{
    bool once = *given == NULL || option->kind == BENCH_OPTION_FLAG || option->kind == BENCH_OPTION_TEXTS;
    bool list = option->kind == BENCH_OPTION_INTEGERS || option->kind == BENCH_OPTION_CHOICES;
    if (!once)
        return bench_say(message, "--%s is given twice, '%.100s' and '%.100s': %s", option->name, *given, value,
                         list ? "it takes one list, with commas" : "it takes one value");
    *given = value;
    return true;
}

bool bench_options_read(bench_options *options, unsigned command, const char *command_name, int count, char **argv,
                        char message[BENCH_MESSAGE])
{
    const char *given[MAX_OPTIONS] = {0}; /* by place in the table */
    *options = (bench_options){0};
    for (int i = 0; i < count; i++) {
        char name[MAX_WORD];
        const char *equals = strncmp(argv[i], "--", 2) == 0 ? strchr(argv[i], '=') : NULL;
        size_t length = equals != NULL ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        if (length >= sizeof name)
            return bench_say(message, "option '%.40s...' is too long", argv[i]);
        memcpy(name, argv[i], length);
        name[length] = '\0';
        const bench_option *option = bench_option_find(name, command);
        if (option == NULL)
            return unknown_option(name, command, command_name, message);
        const char *value = equals != NULL ? equals + 1 : NULL;
        bool optional = option->kind == BENCH_OPTION_OUTPUT;
        if (option->kind == BENCH_OPTION_FLAG && value != NULL)
            return bench_say(message, "--%s takes no value", option->name);
        if (option->kind != BENCH_OPTION_FLAG && value == NULL) {
            bool there = i + 1 < count && (!optional || argv[i + 1][0] != '-' || strcmp(argv[i + 1], "-") == 0);
            if (!there && !optional)
                return bench_say(message, "--%s needs a value: --%s %s", option->name, option->name, option->argument);
            value = there ? argv[++i] : "-";
        }
        if (!given_once(option, &given[option - bench_option_table], value, message) ||
            !read_value(option, value, options, message))
            return false;
    }
    return true;
}
