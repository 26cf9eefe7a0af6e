/* The simulator inside the plugin, for tests of several contexts: its options and reports. Nothing of it on a real
 * GPU. */
#ifndef TPT_CUDA_SIMULATOR_H
#define TPT_CUDA_SIMULATOR_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "../../gpusim/include/gpusim/gpusim.h"

static inline void *tpt_simulator_symbol(const char *name)
{
    void *plugin = dlopen(TPT_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *symbol = plugin ? dlsym(plugin, name) : NULL;
    if (plugin)
        dlclose(plugin);
    return symbol;
}

/* Before contexts are made, and when all are destroyed. False on a real GPU. */
static inline bool tpt_simulator_configure(const gpusim_options *options)
{
    void (*configure)(const gpusim_options *);
    void *symbol = tpt_simulator_symbol("gpusim_configure");
    memcpy(&configure, &symbol, sizeof symbol);
    if (symbol)
        configure(options);
    return symbol != NULL;
}

/* The n-th NCCL call of the rank on this device fails: gpusim_fail_nccl. False on a real GPU. */
static inline bool tpt_simulator_fail_nccl(int device, int n, gpusim_nccl_failure how)
{
    void (*plant)(int, int, gpusim_nccl_failure);
    void *symbol = tpt_simulator_symbol("gpusim_fail_nccl");
    memcpy(&plant, &symbol, sizeof symbol);
    if (symbol)
        plant(device, n, how);
    return symbol != NULL;
}

/* Which NCCL is simulated: gpusim_nccl. False on a real GPU. */
static inline bool tpt_simulator_nccl(int version, bool symmetric)
{
    void (*choose)(int, bool);
    void *symbol = tpt_simulator_symbol("gpusim_nccl");
    memcpy(&choose, &symbol, sizeof symbol);
    if (symbol)
        choose(version, symmetric);
    return symbol != NULL;
}

/* Number of reports; the first one's text. */
static inline int tpt_simulator_count(char *first, size_t bytes)
{
    int (*reports)(int);
    const char *(*text)(int);
    void *symbol = tpt_simulator_symbol("gpusim_reports"), *texts = tpt_simulator_symbol("gpusim_report_text");
    if (!symbol || !texts)
        return 0;
    memcpy(&reports, &symbol, sizeof symbol);
    memcpy(&text, &texts, sizeof texts);
    int count = reports(-1);
    snprintf(first, bytes, "%s", count > 0 && text(0) ? text(0) : "");
    return count;
}

#endif
