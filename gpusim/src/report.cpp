#include "report.h"

#include "options.h"

#include <cstdarg>
#include <cstdio>
#include <map>
#include <vector>

namespace gpusim {
namespace {

struct Report {
    gpusim_report_kind kind;
    std::string text;
    std::string shown; // with the count: what gpusim_report_text returns
    int64_t times;
};

const char *const kind_names[GPUSIM_REPORT_KINDS] = {
    "race in shared memory",  "race in global memory",  "missing order between streams", "out of bounds",
    "use after free",         "uninitialised read",     "use of a pending copy",        "deadlock",
    "host access",            "wrong device",           "API misuse",                    "cuBLASLt misuse",
    "NCCL misuse",            "not simulated",          "leak",
    "trap",
};

struct Reports {
    std::vector<Report> list;
    std::map<std::string, size_t> index;
    bool quiet = false;
};

Reports &reports()
{
    static auto &all = *new Reports; // outlives static destructors: leaks are reported at exit
    return all;
}

std::string full_key(gpusim_report_kind kind, const std::string &key)
{
    return std::to_string(int(kind)) + ":" + key;
}

} // namespace

std::string format_text(const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

bool report_seen(gpusim_report_kind kind, const std::string &key)
{
    Locked lock(machine_lock());
    auto found = reports().index.find(full_key(kind, key));
    if (found == reports().index.end())
        return false;
    reports().list[found->second].times++;
    return true;
}

void report_new(gpusim_report_kind kind, const std::string &key, const std::string &text)
{
    Locked lock(machine_lock());
    reports().index[full_key(kind, key)] = reports().list.size();
    reports().list.push_back({kind, text, "", 1});
    if (!reports().quiet)
        fprintf(stderr, "gpusim: %s: %s\n", kind_names[kind], text.c_str());
}

void report(gpusim_report_kind kind, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!report_seen(kind, text))
        report_new(kind, text, text);
}

void reports_clear()
{
    reports().list.clear();
    reports().index.clear();
}

} // namespace gpusim

using namespace gpusim;

extern "C" int gpusim_reports(int kind)
{
    Locked lock(machine_lock());
    int number = 0;
    for (const Report &one : reports().list)
        number += kind < 0 || one.kind == kind;
    return number;
}

extern "C" const char *gpusim_report_text(int index)
{
    Locked lock(machine_lock());
    if (index < 0 || size_t(index) >= reports().list.size())
        return nullptr;
    Report &one = reports().list[size_t(index)];
    one.shown = std::string(kind_names[one.kind]) + ": " + one.text;
    if (one.times > 1)
        one.shown += " (" + std::to_string(one.times) + " times)";
    return one.shown.c_str();
}

extern "C" void gpusim_quiet(bool quiet)
{
    Locked lock(machine_lock());
    reports().quiet = quiet;
}

extern "C" void gpusim_clear_reports(void)
{
    Locked lock(machine_lock());
    reports_clear();
}
