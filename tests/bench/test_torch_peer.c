/* tp_bench model --peer torch: what is refused, interpreters that fail in every way, and, where PyTorch is there, that
 * both sides do the same work. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"
#include "measure.h"
#include "program.h"

#define SMALL "model --layers 1 --hidden 32 --heads 2 --sequence 16 --batch 2 --steps 4 --warmup 1 "
#define FAKE "./bench_fake_torch.tmp"
/* Reads all that it is sent, as the script would. */
#define READS "exec 3<&0; cat <&3 >/dev/null & "
#define STEP "step 0.25 0.05 0.15 0.05 0.0124 9 1\\n"
#define DISTURBED "step 0.25 0.05 0.15 0.05 0.0126 9 1\\n" /* lost 5 % */

/* An interpreter that does this instead of running Python. */
static void fake(const char *commands)
{
    FILE *file = fopen(FAKE, "w");
    cr_assert_not_null(file);
    fprintf(file, "#!/bin/sh\n%s\n", commands);
    fclose(file);
    cr_assert_eq(chmod(FAKE, 0755), 0);
}

static void expect_failure(const char *commands, const char *arguments, const char *message)
{
    char line[512];
    fake(commands);
    snprintf(line, sizeof line, SMALL "--peer torch --threads 1 %s --python " FAKE " %s",
             strstr(arguments, "--ranks") == NULL ? "--ranks 2" : "", arguments);
    double start = bench_now();
    expect(line, 3, "--peer torch: ", message);
    cr_expect_lt(bench_now() - start, 60, "waits have bounds");
    cr_expect_null(strstr(tpt_printed, "tokens/s"), "no table without rows: %s", tpt_printed);
    remove(FAKE);
}

Test(torch_peer, refusals)
{
    expect("model --peer torsh", 2, "--peer: unknown 'torsh'", "did you mean 'torch'");
    expect("model --peer torch --dry-run", 2, "--peer torch", "--dry-run");
    expect("model --peer torch --link 5us,2GB/s", 2, "--peer torch", "--link");
    expect("model --peer torch --family llama", 2, "--peer torch", "gpt2");
    expect("model --peer torch --activation relu", 2, "--peer torch", "gelu-tanh");
    expect("model --peer torch --dropout 0.1", 2, "--dropout 0.1", "--peer torch");
    expect("model --peer torch --dtype bf16,f16", 2, "--dtype f16", "f32 and bf16");
    expect("model --peer torch --patience 0", 2, "--patience: 0", "[0.1, 3600]");
    expect("model --python python3", 2, "--python", "--peer torch");
    expect("model --patience 3", 2, "--patience", "--peer torch");
    expect("sweep --peer torch", 2, "--peer", "does not belong");
}

Test(torch_peer, an_interpreter_that_is_none)
{
    expect(SMALL "--peer torch --python ./bench_missing.tmp", 3, "'./bench_missing.tmp' can't be run",
           strerror(ENOENT));
    expect(SMALL "--peer torch --python /", 3, "'/' can't be run", strerror(EACCES));
    expect_failure("printf 'fail no PyTorch: none is here\\n'", "", "no PyTorch: none is here");
    expect_failure("exit 7", "", "the interpreter ended with status 7 before it said anything");
    expect_failure("kill -9 $$", "", "the interpreter was ended by signal 9 before it said anything");
    expect_failure("echo hullo", "", "expected 'hello', it said 'hullo'");
    expect_failure("yes | tr -d '\\n' | head -c 4096; sleep 100", "", "a line without an end");
}

/* It, and what it has started, is ended too. */
Test(torch_peer, one_that_hangs)
{
    expect_failure("echo $$ >bench_pid.tmp; exec sleep 100", "--patience 0.3",
                   "no answer for 0.3 s after 0 steps (--patience)");
    FILE *file = fopen("bench_pid.tmp", "r");
    int pid = 0;
    cr_assert_not_null(file);
    cr_assert_eq(fscanf(file, "%d", &pid), 1);
    fclose(file);
    remove("bench_pid.tmp");
    cr_expect(kill(pid, 0) != 0 && errno == ESRCH, "process %d is still there", pid);
    /* reads nothing: sending has a bound too */
    expect_failure("printf 'hello fake\\n'; exec sleep 100", "--patience 0.5", "no answer for 0.5 s after 0 steps");
    expect_failure(READS "printf 'hello fake\\nready fake\\n" STEP "'; exec sleep 100", "--patience 0.5",
                   "no answer for 0.5 s after 1 steps");
}

Test(torch_peer, one_that_dies_or_talks_nonsense_on_the_way)
{
    expect_failure(READS "printf 'hello fake\\nready fake\\n" STEP STEP "'; kill -9 $$", "",
                   "the process was ended by signal 9 after 2 steps");
    expect_failure(READS "printf 'hello fake\\nready fake\\n" STEP "'; exit 3", "--ranks 1,2",
                   "the process ended with status 3 after 1 steps");
    expect_failure(READS "printf 'hello fake\\nready fake\\nfail out of memory\\n'", "", "--peer torch: out of memory");
    expect_failure(READS "printf 'hello fake\\nready fake\\nstep fast\\n'; sleep 1", "", "of a step it said 'fast'");
    expect_failure("printf 'hello fake\\nfail unknown setting\\n'", "--peer-settings x",
                   "--peer torch: unknown setting");
}

/* A time that can't be measured, and what stands after a sample, is a fault of the peer, and no figure. */
Test(torch_peer, one_whose_times_can_not_be)
{
    static const char *const said[] = {
        "-1 -1 -1 -1 0 5.5 1",      "nan 0.05 0.15 0.05 0 9 1",   "0 0 0 0 0 9 1",
        "0.25 0 0.15 0.05 0 9 1",   "0.25 0.05 -0.15 0.05 0 9 1", "0.25 0.05 0.15 inf 0 9 1",
        "400 0.05 0.15 0.05 0 9 1", "0.25 0.05 0.15 0.05 -1 9 1", "0.25 0.05 0.15 0.05 nan 9 1",
        "0.25 0.05 0.15 0.05 0 9",    "0.25 0.05 0.15 0.05 0 9 1 2"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        char commands[512], message[256];
        snprintf(commands, sizeof commands,
                 READS "printf 'hello fake\\nready fake\\nstep %s\\n" STEP STEP STEP "'; wait", said[i]);
        snprintf(message, sizeof message, "of a step it said '%s', must be four times above 0 and at most 300 s",
                 said[i]);
        expect_failure(commands, "", message);
    }
}

/* Whether a process is there and runs; one that only waits to be reaped doesn't. */
static bool runs(int pid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    const char *state = fgets(line, sizeof line, file) != NULL ? strrchr(line, ')') : NULL;
    fclose(file);
    return state != NULL && state[2] != 'Z' && state[2] != 'X';
}

/* A number that a process writes to a file, once it is there; 0: it never was. */
static int awaited_number(const char *path)
{
    int number = 0;
    for (int i = 0; i < 600 && number == 0; i++) {
        FILE *file = fopen(path, "r");
        if (file != NULL) {
            if (fscanf(file, "%d\n", &number) != 1)
                number = 0;
            fclose(file);
        }
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    remove(path);
    return number;
}

/* However tp_bench ends, a peer that doesn't care about its input's end, and what that has started, end with it. */
Test(torch_peer, none_is_left_behind)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGKILL};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        fake("trap '' INT TERM HUP; sleep 1000 & printf 'hello fake\\nready fake\\n'; echo $! >bench_child.tmp; echo "
             "$$ >bench_pid.tmp; wait; sleep 1000");
        pid_t bench = fork();
        if (bench == 0) {
            freopen("/dev/null", "w", stdout);
            freopen("/dev/null", "w", stderr);
            execl(TPT_BENCH_PROGRAM, "tp_bench", "model", "--layers", "1", "--hidden", "32", "--heads", "2",
                  "--sequence", "16", "--steps", "4", "--ranks", "1", "--threads", "1", "--peer", "torch", "--python",
                  FAKE, (char *)NULL);
            _exit(127);
        }
        cr_assert_gt(bench, 0);
        int peer = awaited_number("bench_pid.tmp"), child = awaited_number("bench_child.tmp");
        cr_assert(peer > 0 && child > 0 && runs(peer) && runs(child), "%d, %d", peer, child);
        kill(bench, ends[i]);
        cr_assert_eq(waitpid(bench, NULL, 0), bench);
        double deadline = bench_now() + 30;
        while ((runs(peer) || runs(child)) && bench_now() < deadline)
            nanosleep(&(struct timespec){0, 50000000}, NULL);
        cr_expect(!runs(peer) && !runs(child), "after signal %d of %d and %d one is left", ends[i], peer, child);
        kill(peer, SIGKILL);
        kill(child, SIGKILL);
    }
    remove(FAKE);
}

/* The field of a row of CSV; none of those before it is quoted. */
static double field(const char *row, int index)
{
    for (; index > 0; index--)
        row = strchr(row, ',') + 1;
    return atof(row);
}

/* How many steps the note about the ratio says it is of; -1: no such note. */
static int clean_steps(void)
{
    const char *note = strstr(tpt_printed, "torch / step is of the ");
    int clean = -1;
    return note != NULL && sscanf(note, "torch / step is of the %d of 3", &clean) == 1 ? clean : -1;
}

/* Steps of 250 ms, and losses that can't be right. */
Test(torch_peer, other_work_is_no_comparison)
{
    fake(READS "printf 'hello fake\\nready 1.2.3 eager\\n" STEP STEP STEP STEP "'; wait");
    expect(SMALL "--peer torch --ranks 2 --threads 1 --python " FAKE, 1, "CHECK FAILED: f32, 2 ranks: losses are",
           "PyTorch 1.2.3");
    cr_expect_not_null(strstr(tpt_printed, "f32: PyTorch 1.2.3 eager"), "%s", tpt_printed);
    cr_expect_not_null(strstr(tpt_printed, "were dropped because"), "%s", tpt_printed);
    fake(READS "printf 'hello fake\\nready 1.2.3 eager\\n" STEP STEP STEP STEP "'; wait");
    expect(SMALL "--peer torch --ranks 2 --threads 1 --no-check --csv bench_torch.tmp --python " FAKE, 0,
           "PyTorch 1.2.3", "torch / step");
    int clean = clean_steps();
    cr_expect(clean >= 0 && clean <= 3, "%s", tpt_printed);
    tpt_printed_file("bench_torch.tmp");
    const char *ours = strstr(tpt_printed, "\nf32,2,");
    cr_assert(ours != NULL && strstr(tpt_printed, "PyTorch 1.2.3 eager,250") != NULL, "%s", tpt_printed);
    cr_expect_eq(clean > 0, field(ours + 1, 26) > 0, "a ratio of none, or none of some: %s", tpt_printed);
    remove(FAKE);
}

/* It has as many cores as the largest of ours: a smaller one is not compared with it. */
Test(torch_peer, other_cores_are_no_comparison)
{
    fake(READS "printf 'hello fake\\nready 1.2.3 eager\\n" STEP STEP STEP STEP "'; wait");
    expect(SMALL "--peer torch --ranks 1,2 --threads 1 --no-check --csv bench_torch.tmp --python " FAKE, 0,
           "PyTorch 1.2.3", "torch / step is of the ");
    bool told = strstr(tpt_printed, "f32, 1 ranks: no torch / step: they use 1 cores, PyTorch 2") != NULL;
    cr_expect_eq(told, bench_machine_look().cores > 1, "%s", tpt_printed);
    tpt_printed_file("bench_torch.tmp");
    const char *one = strstr(tpt_printed, "\nf32,1,");
    cr_assert_not_null(one, "%s", tpt_printed);
    cr_expect(!told || field(one + 1, 26) == 0, "an empty cell: %s", one);
    remove("bench_torch.tmp");
    remove(FAKE);
}

/* Whether theirs or ours was disturbed: such a step is in no ratio, and both have it in their own figures' count. */
Test(torch_peer, a_disturbed_step_is_no_comparison)
{
    fake(READS "printf 'hello fake\\nready 1.2.3 eager\\n" STEP STEP DISTURBED DISTURBED "'; wait");
    expect(SMALL "--peer torch --ranks 2 --threads 1 --no-check --csv bench_torch.tmp --python " FAKE, 0,
           "PyTorch 1.2.3", "torch / step");
    int clean = clean_steps();
    cr_expect(clean >= 0 && clean <= 1, "%s", tpt_printed);
    fake(READS "printf 'hello fake\\nready 1.2.3 eager\\n" STEP DISTURBED DISTURBED DISTURBED "'; wait");
    expect(SMALL "--peer torch --ranks 2 --threads 1 --no-check --csv bench_torch.tmp --python " FAKE, 0,
           "PyTorch 1.2.3", "torch / step");
    cr_expect_eq(clean_steps(), 0, "%s", tpt_printed);
    tpt_printed_file("bench_torch.tmp");
    const char *ours = strstr(tpt_printed, "\nf32,2,");
    cr_assert_not_null(ours, "%s", tpt_printed);
    cr_expect_eq(field(ours + 1, 26), 0, "an empty cell: %s", ours);
    remove("bench_torch.tmp");
    remove(FAKE);
}

/* The first interpreter that has it, or NULL. */
static const char *find_torch(void)
{
    const char *const tried[] = {getenv("TP_BENCH_PYTHON"), "python3", "/usr/bin/python3"};
    for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
        char command[512];
        if (tried[i] == NULL)
            continue;
        snprintf(command, sizeof command, "timeout 60 '%s' -c 'import torch' >/dev/null 2>&1", tried[i]);
        if (system(command) == 0)
            return tried[i];
    }
    return NULL;
}

/* The exit status says that losses and gradients of all steps agree: of the same weights and tokens, after the same
 * updates. */
Test(torch_peer, both_sides_do_the_same_work)
{
    const char *python = find_torch();
    if (python == NULL)
        cr_skip_test("no interpreter here has PyTorch");
    static const char *const settings[] = {"eager,autocast", "eager,master"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments,
                 SMALL "--peer torch --ranks 1 --threads 1 --dtype %s --peer-settings %s --python '%s'",
                 i == 0 ? "f32,bf16" : "bf16", settings[i], python);
        expect(arguments, 0, "PyTorch", "in all 4");
        cr_expect_null(strstr(tpt_printed, "FAILED"), "%s", tpt_printed);
    }
    char arguments[512];
    snprintf(arguments, sizeof arguments, SMALL "--peer torch --peer-settings eagr --python '%s'", python);
    expect(arguments, 3, "unknown setting 'eagr'", "compiled eager autocast master");
}

/* Its script with one thing done otherwise: losses or gradients tell, in bf16 too. */
Test(torch_peer, other_work_of_the_script)
{
    static const char *const changes[] = {
        "s/is_causal=True/is_causal=False/; s/triu(1)/triu(99)/", /* of both ways that attention is computed */
        "s/approximate=.tanh.//; s/F.gelu/F.relu/",
        "s/\"lr\": job\\[.lr.\\]/\"lr\": 30 * job[\"lr\"]/",
        "s/clip_grad_norm_(masters,/clip_grad_norm_(masters[3:],/",
    };
    const char *python = find_torch();
    if (python == NULL)
        cr_skip_test("no interpreter here has PyTorch");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char commands[1024];
        snprintf(commands, sizeof commands,
                 "sed '%s' \"$1\" >bench_torch.tmp; cmp -s \"$1\" bench_torch.tmp && exit 9; exec '%s' bench_torch.tmp",
                 changes[i], python);
        fake(commands);
        expect(SMALL "--peer torch --ranks 1 --threads 1 --dtype bf16 --peer-settings eager --python " FAKE, 1,
               "CHECK FAILED: bf16, 1 ranks: losses are", "are rounding");
    }
    remove("bench_torch.tmp");
    remove(FAKE);
}
