#include "options.h"

#include "ptx.h"
#include "report.h"
#include "runtime/runtime.h"

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

namespace gpusim {
namespace {

uint64_t &random_state()
{
    static uint64_t state = 1;
    return state;
}

void seed_random(uint64_t seed)
{
    random_state() = seed * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du;
    if (random_state() == 0)
        random_state() = 1;
}

// A value that means nothing must not pass for the default one: the first that is found, said by whoever uses the
// simulator next.
long number_from(const char *name, long low, long high, long missing, std::string *wrong)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return missing;
    char *end = nullptr;
    errno = 0;
    const long value = strtol(text, &end, 0);
    if (errno == 0 && !*end && value >= low && value <= high)
        return value;
    if (wrong->empty() && high == LONG_MAX)
        *wrong = format_text("%s is '%s', and should be a number", name, text);
    else if (wrong->empty())
        *wrong = format_text("%s is '%s', and should be a number from %ld to %ld", name, text, low, high);
    return missing;
}

int choice_from(const char *name, const char *const words[3], std::string *wrong)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return 0;
    for (int i = 0; i < 3; i++)
        if (strcmp(text, words[i]) == 0)
            return i;
    if (wrong->empty())
        *wrong = format_text("%s is '%s', and should be %s, %s or %s", name, text, words[0], words[1], words[2]);
    return 0;
}

int clamp(long value, long low, long high)
{
    return int(value < low ? low : value > high ? high : value);
}

Options options_from_environment()
{
    static const char *const schedules[3] = {"eager", "lazy", "random"};
    static const char *const orders[3] = {"up", "down", "random"};
    Options chosen;
    std::string *wrong = &chosen.wrong;
    chosen.devices = int(number_from("GPUSIM_DEVICES", 0, 16, chosen.devices, wrong));
    chosen.compute_capability = int(number_from("GPUSIM_CC", 50, 200, chosen.compute_capability, wrong));
    chosen.multiprocessors = int(number_from("GPUSIM_MULTIPROCESSORS", 1, 1024, chosen.multiprocessors, wrong));
    chosen.schedule = gpusim_schedule(choice_from("GPUSIM_SCHEDULE", schedules, wrong));
    chosen.order = gpusim_order(choice_from("GPUSIM_ORDER", orders, wrong));
    chosen.seed = uint64_t(number_from("GPUSIM_SEED", LONG_MIN, LONG_MAX, 0, wrong));
    chosen.check = number_from("GPUSIM_CHECKS", 0, 1, 1, wrong) != 0;
    chosen.skip_barrier = int(number_from("GPUSIM_SKIP_BARRIER", 0, INT_MAX, 0, wrong));
    chosen.skip_wait = int(number_from("GPUSIM_SKIP_WAIT", 0, INT_MAX, 0, wrong));
    number_from("GPUSIM_GUARD", 0, 1, 1, wrong); // guard.cpp reads it
    return chosen;
}

Options &current()
{
    static Options chosen = [] {
        Options environment = options_from_environment();
        seed_random(environment.seed);
        return environment;
    }();
    return chosen;
}

void clear_counts()
{
    counts() = gpusim_counts{};
    counts().instructions = -int64_t(executed_instructions());
}

} // namespace

const Options &options()
{
    return current();
}

uint32_t random_number()
{
    uint64_t &state = random_state();
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return uint32_t(state >> 16);
}

void MachineLock::lock()
{
    waiting_++;
    mutex_.lock();
    waiting_--;
    taken_++;
}

MachineLock &machine_lock()
{
    static auto &lock = *new MachineLock; // never destroyed: kernels are registered and freed around main()
    return lock;
}

gpusim_counts &counts()
{
    static gpusim_counts total;
    return total;
}

} // namespace gpusim

using namespace gpusim;

extern "C" void gpusim_configure(const gpusim_options *given)
{
    Locked lock(machine_lock());
    Options chosen = options_from_environment();
    if (given) {
        chosen.devices = given->devices ? clamp(given->devices, 1, 16) : chosen.devices;
        chosen.compute_capability = given->compute_capability ? given->compute_capability : chosen.compute_capability;
        chosen.schedule = given->schedule;
        chosen.order = given->order;
        chosen.seed = given->seed;
        chosen.check = !given->no_checks;
        chosen.skip_barrier = given->skip_barrier;
        chosen.skip_wait = given->skip_wait;
        chosen.skip_thread = given->skip_thread;
        chosen.multiprocessors = given->multiprocessors ? given->multiprocessors : chosen.multiprocessors;
        chosen.device_bytes = given->device_bytes ? given->device_bytes : chosen.device_bytes;
    }
    current() = chosen;
    seed_random(chosen.seed);
    runtime_reset();
    reports_clear();
    clear_counts();
    gpusim_fail_nccl(0, 0, GPUSIM_NCCL_AT_CALL);
    gpusim_fail_blas(0, GPUSIM_BLAS_HEURISTIC);
    gpusim_fail_blas(0, GPUSIM_BLAS_MATMUL);
    gpusim_nccl(0, true);
}

extern "C" gpusim_counts gpusim_count(void)
{
    Locked lock(machine_lock());
    gpusim_counts since = counts();
    since.instructions += int64_t(executed_instructions()); // the machine's own count never goes back
    return since;
}

extern "C" void gpusim_clear_counts(void)
{
    Locked lock(machine_lock());
    clear_counts();
}
