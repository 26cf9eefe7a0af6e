#include "cuda/gpus.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The plugin stays loaded; contexts load the same. */
static void *symbol_of(const char *name)
{
    void *plugin = dlopen(TPT_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *symbol = plugin != NULL ? dlsym(plugin, name) : NULL;
    if (plugin != NULL)
        dlclose(plugin);
    return symbol;
}

/* Sets `function` to the simulator's function with that name; false without a simulator. */
#define FIND(function, name) find(&(function), sizeof(function), name)

static bool find(void *function, size_t bytes, const char *name)
{
    void *symbol = symbol_of(name);
    memcpy(function, &symbol, bytes);
    return symbol != NULL;
}

bool tpt_gpus_configure(const gpusim_options *options)
{
    void (*configure)(const gpusim_options *);
    if (!FIND(configure, "gpusim_configure"))
        return false;
    configure(options);
    return true;
}

gpusim_options tpt_gpus_schedule(unsigned number)
{
    static const gpusim_options schedules[TPT_SCHEDULES] = {
        {.schedule = GPUSIM_EAGER},
        {.schedule = GPUSIM_LAZY, .order = GPUSIM_DOWN},
        {.schedule = GPUSIM_RANDOM, .order = GPUSIM_SHUFFLED, .seed = 1},
        {.schedule = GPUSIM_RANDOM, .order = GPUSIM_SHUFFLED, .seed = 2},
        {.schedule = GPUSIM_RANDOM, .order = GPUSIM_SHUFFLED, .seed = 3},
    };
    return schedules[number % TPT_SCHEDULES];
}

gpusim_options tpt_gpus_schedule_of(unsigned which_case)
{
    const char *text = getenv("TPT_CUDA_SCHEDULE");
    return tpt_gpus_schedule(which_case + (text != NULL ? (unsigned)strtoul(text, NULL, 10) : 0));
}

void tpt_gpus_turn(unsigned which_case)
{
    gpusim_options options = tpt_gpus_schedule_of(which_case);
    tpt_gpus_configure(&options);
}

int tpt_gpus_reports(const char **first)
{
    int (*reports)(int);
    const char *(*text)(int);
    *first = "";
    if (!FIND(reports, "gpusim_reports") || !FIND(text, "gpusim_report_text"))
        return 0;
    int count = reports(-1);
    if (count > 0 && text(0) != NULL)
        *first = text(0);
    return count;
}

int tpt_gpus_leaks(void)
{
    int (*leaks)(void);
    return FIND(leaks, "gpusim_report_leaks") ? leaks() : 0;
}

void tpt_gpus_quiet(bool quiet)
{
    void (*silence)(bool);
    if (FIND(silence, "gpusim_quiet"))
        silence(quiet);
}

gpusim_counts tpt_gpus_count(void)
{
    gpusim_counts (*count)(void);
    return FIND(count, "gpusim_count") ? count() : (gpusim_counts){0};
}

void tpt_gpus_clear_counts(void)
{
    void (*clear)(void);
    if (FIND(clear, "gpusim_clear_counts"))
        clear();
}

void tpt_gpus_thread(int number)
{
    void (*name)(int);
    if (FIND(name, "gpusim_thread"))
        name(number);
}

int64_t tpt_gpus_thread_waits(int number)
{
    int64_t (*waits)(int);
    return FIND(waits, "gpusim_thread_waits") ? waits(number) : 0;
}

bool tpt_gpus_wait_orders(int number, int64_t n)
{
    bool (*orders)(int, int64_t);
    return !FIND(orders, "gpusim_wait_orders") || orders(number, n);
}

bool tpt_gpus_fail_blas(int n, gpusim_blas_failure what)
{
    void (*plant)(int, gpusim_blas_failure);
    if (!FIND(plant, "gpusim_fail_blas"))
        return false;
    plant(n, what);
    return true;
}

int tpt_gpus_barriers(void)
{
    int (*sites)(void);
    return FIND(sites, "gpusim_barrier_sites") ? sites() : 0;
}

gpusim_site tpt_gpus_barrier(int index)
{
    gpusim_site (*site)(int);
    return FIND(site, "gpusim_barrier_site") ? site(index) : (gpusim_site){0};
}

void tpt_gpus_clean(const char *what)
{
    const char *first;
    int leaks = tpt_gpus_leaks(), count = tpt_gpus_reports(&first);
    cr_assert_eq(count, 0, "%s: %d reports of the simulator, %d of them leaks; the first: %s", what, count, leaks,
                 first);
}
