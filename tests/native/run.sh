#!/usr/bin/env bash
# Builds and runs the C++ tests under the address and undefined-behaviour sanitizers, and under the thread sanitizer.
# Arguments go to ctest (for example: -R reduce). Fails if any variant fails. Tests that need what this machine lacks are
# counted as skipped. VERBS_HEADERS: a folder with infiniband/verbs.h, for test_abi, where that is not installed.
# VARIANTS="release address thread" also runs them optimised, as the engine is that the Python tests use.
# With BUILD_ONLY=1 nothing is run: the next call finds everything compiled. With BUILD_ONLY=native_tests that
# executable alone is compiled, optimised.
set -u -o pipefail
cd "$(dirname "$0")/../.."

jobs=${JOBS:-$(nproc)}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export COLLECTIVES_PULL=${COLLECTIVES_PULL:-1}  # on slow machines, too
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}

# Older thread sanitizers cannot cope with as much address randomisation as newer kernels use.
plainly=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
    plainly=(setarch "$(uname -m)" -R)
fi

mkdir -p build
exec 9>build/native.lock
flock 9 # who builds only, in the background, comes first

summary=()
failed=0

target=()
[[ ${BUILD_ONLY:-1} == 1 ]] || target=(--target "$BUILD_ONLY")

result_in() { # for ctest, a skipped test has passed
    local skipped
    skipped=$(grep -c '\*\*\*Skipped' "$1")
    grep -E 'tests passed' "$1" | sed "s/\$/, $skipped of them skipped/"
}

variant() {
    local name=$1 type=$2 sanitize=$3
    shift 3
    local dir=build/native-$name log=build/native-$name.log begin=$SECONDS result generator=()
    if command -v ninja >/dev/null && [[ ! -f $dir/Makefile ]]; then # a folder keeps the generator that it was made with
        generator=(-G Ninja)
    fi
    mkdir -p build
    echo "== $name"
    if ! { cmake "${generator[@]}" -S . -B "$dir" -DCOLLECTIVES_TESTS=ON -DCOLLECTIVES_MODULE=OFF \
        -DCMAKE_BUILD_TYPE="$type" -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" -DCOLLECTIVES_SANITIZE="$sanitize" &&
        cmake --build "$dir" -j "$jobs" "${target[@]}"; } >"$log" 2>&1; then
        tail -n 60 "$log"
        result="did not build, see $log"
    elif [[ ${BUILD_ONLY:-} ]]; then
        result="100% built"
    elif "${plainly[@]}" ctest --test-dir "$dir" -j "$jobs" --output-on-failure "$@" | tee "$log.tests"; then
        result=$(result_in "$log.tests")
    else
        result="FAILED: $(result_in "$log.tests")"
    fi
    [[ $result == 100%* ]] || failed=1
    summary+=("$(printf '%-18s %s (%d s)' "$name" "$result" $((SECONDS - begin)))")
}

variants=${VARIANTS:-address thread}
[[ ${#target[@]} == 0 ]] || variants=release
for each in $variants; do
    case $each in
        release) variant release Release "" "$@" ;;
        address) variant address Debug address,undefined "$@" ;;
        thread) variant thread Debug thread "$@" ;;
        *) echo "VARIANTS: release, address and thread, not $each" >&2 && exit 2 ;;
    esac
done

echo
echo "C++ tests:"
printf '  %s\n' "${summary[@]}"
exit $failed
