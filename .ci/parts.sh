# For .ci/run and .ci/more: parts of a run, whose logs and endings are kept in the folder $results, and the end of all.
results=$PWD/.results
rm -rf "$results" && mkdir "$results"

# part NAME COMMAND...: run it, and keep its log and how it ended.
part() {
    local name=$1 began=$SECONDS code=0
    shift
    echo "=== $*"
    "$@" 2>&1 </dev/null | tee "$results/$name.log" || code=$?
    record "$name" $((SECONDS - began)) "$code"
}
record() { printf '{"name": "%s", "seconds": %d, "code": %d}\n' "$@" >"$results/$1.part"; }

# tests ARGUMENTS...: run ./run test with them. Each of its pytest processes is a part. An exit code that is no verdict on
# tests, 0 or 1, is the failure of what runs them.
tests() {
    local began=$SECONDS code=0
    echo "=== ./run test $*"
    PATH="$results/programs:$PATH" ./run test "$@" </dev/null 2>&1 | tee "$results/tests.log" || code=$?
    [ "$code" -le 1 ] || record tests $((SECONDS - began)) "$code"
}

# end: tell what failed, how long each part took, and how many tests passed.
end() {
    echo "=== in all $SECONDS s"
    exec python3 tests/summary.py "$results"
}
