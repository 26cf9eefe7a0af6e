#!/bin/bash
# Installs what is missing, builds, runs the tests, and counts them. See --help.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/setup.sh

usage() {
    cat <<'TEXT'
usage: tests/run.sh [option]...

Installs what is missing (with apt-get; through sudo if you are not root), configures, builds, runs the tests, and
prints one line for each test program. The last line is "N passed, N failed, N skipped"; the exit status is 0 if
nothing failed.

  --preset NAME   build this preset of CMakePresets.json instead of release; may be given more than once
                  (release debug asan tsan clang-release clang-debug clang-asan clang-tsan)
  --all           release, clang-release, asan and tsan. The CUDA backend is tested in the first, on simulated GPUs;
                  these have their own tests in the first three
  --quick         only the tests of core, cpu, comm and plan, and the lint
  --cuda          only the tests of the CUDA backend and of the simulated GPUs
  --schedules     only the tests of the CUDA backend, five times: every case under every schedule of the simulated
                  GPUs (else each takes one)
  --tests REGEX   only tests whose name matches
  --strict        what is missing after installing is a failure, not a skip
  --no-install    install nothing
  --jobs N        compilers and test programs at the same time (default: number of cores)
  --help          this text

examples
  tests/run.sh                              everything once, optimised
  tests/run.sh --quick --preset debug       while working on an op
  tests/run.sh --preset tsan --tests comm   communication under the thread sanitizer
  tests/run.sh --schedules --jobs 1         what the simulated GPUs can show, beside their mutants
  tests/run.sh --all --strict               what continuous integration runs
TEXT
}

presets=() all=no cuda=no schedules=no quick=no strict=no install=yes jobs=$(nproc) pattern=.
while [ $# -gt 0 ]; do
    case $1 in
    --preset | --tests | --jobs) [ $# -ge 2 ] || die "$1 needs a value (see --help)" ;;
    esac
    case $1 in
    --preset) presets+=("$2"); shift ;;
    --tests) pattern=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    --all) all=yes ;;
    --quick) quick=yes ;;
    --cuda) cuda=yes ;;
    --schedules) schedules=yes ;;
    --strict) strict=yes ;;
    --no-install) install=no ;;
    --help | -h) usage; exit 0 ;;
    *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs $jobs: expected a number of at least 1"
[ $all = no ] || presets+=(release clang-release asan tsan)
[ ${#presets[@]} -gt 0 ] || presets=(release)
for preset in "${presets[@]}"; do
    grep -q "{\"name\": \"$preset\", \"configurePreset\"" CMakePresets.json ||
        die "--preset $preset: no such preset (see --help)"
done

passed=0 failed=0 skipped=0
trouble() { # TEXT: something is missing
    echo "$1"
    if [ $strict = yes ]; then failed=$((failed + 1)); else skipped=$((skipped + 1)); fi
}

# What the build can't do without, and what only some of the work needs.
needed=(cc g++ headers cmake ninja pkg-config)
wanted=(criterion cjson nvcc)
[[ " ${presets[*]} " != *" clang-"* ]] || wanted+=(clang)
[[ " ${presets[*]} " != *" clang-asan "* && " ${presets[*]} " != *" clang-tsan "* ]] || wanted+=(clang-runtime)
[ $all = no ] || wanted+=(gnuplot)
say "looking for ${needed[*]} ${wanted[*]}"
[ $install = no ] || install_missing "${needed[@]}" "${wanted[@]}"
missing=$(missing_of "${needed[@]}")
[ -z "$missing" ] || die "missing, and needed:" $missing
for thing in $(missing_of "${wanted[@]}"); do
    trouble "missing: $(package_of "$thing")"
    [ "$thing" != nvcc ] || echo "  the CUDA backend and gpusim are not built, their tests are left out: $(nvcc_advice)"
done

# count_tests NUMBER NAME STATUS SECONDS: adds one ctest test to the sums and prints its line. synthesis[] and skips[]
# come from its output.
count_test() {
    local counts=${synthesis[$1]:-} good=0 bad=0 skip=${skips[$1]:-0} note=
    if [ -n "$counts" ]; then
        good=${counts% *} bad=${counts#* }
        # The program failed though all its tests passed: at exit, or it was stopped by its time limit.
        [ "$3" = Passed ] || [ "$bad" -gt 0 ] || { bad=1; note=" ($3)"; }
    else
        case $3 in
        Passed) good=1 ;;
        *Skipped) skip=1 ;;
        *) bad=1; note=" ($3)" ;;
        esac
    fi
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + skip))
    times+="$4 $2"$'\n'
    printf '  %-9s %-34s %4d passed %3d failed %3d skipped  %7s s%s\n' "[$done_tests/$all_tests]" "$2" "$good" "$bad" \
        "$skip" "$4" "$note"
    if [ "$bad" -gt 0 ]; then
        failures+=("$preset: $2")
        grep "^$1: " "$log" | sed "s/^$1: /      /" |
            grep -vE '\[(RUN |PASS|SKIP)\]|Test command|Working Directory|Test timeout|Environment variables' |
            tail -n 50
    fi
}

# run_tests PRESET: runs ctest and reads its verbose output as it comes.
run_tests() {
    local log=build/logs/$1/test.log options=(-j "$jobs" -V -R "$pattern") wrapper=() line
    [ $quick = no ] || options+=(-L '^(core|cpu|comm|plan|lint|support)$')
    [ $cuda = no ] || options+=(-L '^(cuda|gpusim)$')
    [ $schedules = no ] || options+=(-L '^cuda$')
    # Its works have schedules of their own.
    [ -z "${TPT_CUDA_SCHEDULE:-}" ] || options+=(-E "^cuda_sync_mutants$")
    # The rules hold for the sources, headers are compiled by every compiler there, and kernels are nvcc's whatever
    # compiles the rest: once is enough.
    [ "$1" = "${presets[0]}" ] || options+=(-LE '^(lint|cuda|once)$')
    # The thread sanitizer needs a plain address-space layout, which some kernels don't give by themselves.
    if [[ $1 == *tsan ]] && setarch "$(uname -m)" -R true 2>/dev/null; then
        wrapper=(setarch "$(uname -m)" -R)
    fi
    declare -A synthesis=() skips=()
    local result='^ *([0-9]+)/([0-9]+) Test +#([0-9]+): ([^ ]+) [. ]*(\*\*\*)?([A-Za-z].*[^ ]) +([0-9.]+) sec' \
        done_tests all_tests
    local counts='^([0-9]+): \[====\] Synthesis: Tested: [0-9]+ \| Passing: ([0-9]+) \| Failing: ([0-9]+)'
    local mutants='^[0-9]+: \[----\] +([a-z]+: [0-9]+ plans, [0-9]+ mutants: .*)' # how many, and how many were caught
    local before=$((passed + failed + skipped)) times=
    : >"$log"
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        if [[ $line =~ $counts ]]; then
            synthesis[${BASH_REMATCH[1]}]="${BASH_REMATCH[2]} ${BASH_REMATCH[3]}"
        elif [[ $line =~ ^([0-9]+):\ \[SKIP\] ]]; then
            skips[${BASH_REMATCH[1]}]=$((${skips[${BASH_REMATCH[1]}]:-0} + 1))
            echo "            ${line#*: }"
        elif [[ $line =~ $mutants ]]; then
            echo "            ${BASH_REMATCH[1]}"
        elif [[ $line =~ $result ]]; then
            done_tests=${BASH_REMATCH[1]} all_tests=${BASH_REMATCH[2]}
            count_test "${BASH_REMATCH[3]}" "${BASH_REMATCH[4]}" "${BASH_REMATCH[6]}" "${BASH_REMATCH[7]}"
        fi
    done < <("${wrapper[@]}" ctest --test-dir "build/$1" "${options[@]}" 2>&1)
    if [ $((passed + failed + skipped)) = $before ]; then
        echo "  no test ran (see $log)"
        failed=$((failed + 1))
    fi
    echo "  slowest: $(sort -rn <<<"$times" | head -n 10 |
        awk 'NF { printf "%s%s %.0f s", (NR == 1 ? "" : ", "), $2, $1 }')"
}

failures=()
step=0
for preset in "${presets[@]}"; do
    step=$((step + 1))
    say "$preset ($step of ${#presets[@]}): configure, build, test"
    if [[ $preset == clang-* ]] && ! is_there clang; then
        trouble "  $preset: left out, clang is missing"
        continue
    fi
    begin=$SECONDS
    if ! configure_and_build "$preset" "$jobs"; then
        failed=$((failed + 1))
        failures+=("$preset: build")
        continue
    fi
    built=$SECONDS
    run_tests "$preset"
    for schedule in 1 2 3 4; do
        [ $schedules = yes ] || break
        echo "  schedules moved on by $schedule, after $SECONDS s"
        TPT_CUDA_SCHEDULE=$schedule run_tests "$preset"
    done
    echo "  $preset: built in $((built - begin)) s, tested in $((SECONDS - built)) s"
done

say "summary, after $SECONDS s"
for failure in "${failures[@]}"; do
    echo "failed: $failure (output: build/logs/${failure%%:*}/)"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
