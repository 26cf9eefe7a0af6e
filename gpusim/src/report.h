// Findings. Each distinct one is kept once, with the number of times it was seen.
#pragma once
#include "api.h"

#include <string>

namespace gpusim {

void report(gpusim_report_kind kind, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The same with what makes two findings the same one: text that varies from thread to thread stays out of `key`.
// report_seen counts another sighting: true if `key` is known, and then no text need be made.
bool report_seen(gpusim_report_kind kind, const std::string &key);
void report_new(gpusim_report_kind kind, const std::string &key, const std::string &text);

std::string format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
void reports_clear();

} // namespace gpusim
