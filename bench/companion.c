#include "companion.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* From the program's folder. */
#ifndef BENCH_INSTALLED
#define BENCH_INSTALLED "../libexec/tp"
#endif

static bool readable(const char *path, int length, size_t bytes)
{
    return length > 0 && (size_t)length < bytes && access(path, R_OK) == 0;
}

bool bench_companion(const char *name, const char *built, char *path, size_t bytes)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
        if (readable(path, snprintf(path, bytes, "%s/%s", self, name), bytes) ||
            readable(path, snprintf(path, bytes, "%s/" BENCH_INSTALLED "/%s", self, name), bytes))
            return true;
    }
    return built != NULL && readable(path, snprintf(path, bytes, "%s", built), bytes);
}
