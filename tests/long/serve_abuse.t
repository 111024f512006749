#!/bin/bash
# The abuses of tests/serve/http_abuse.h against surogate serve with a tiny model: every one, then a shutdown on request.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
abuse=$(dirname "$SUROGATE")/tests/test_http_abuse_long
[ -x "$abuse" ] || { skip "$abuse isn't built"; finish; }
make_chat max_position_embeddings=512
pid=
trap '[ -n "$pid" ] && kill -9 $pid 2> /dev/null; rm -rf "$dir"' EXIT
"$SUROGATE" serve "$dir/model" --port 0 --device cpu --threads 1 --max-connections 128 --header-timeout 2 > "$dir/address" 2> "$dir/said" &
pid=$!
for _ in $(seq 1200); do
    [ -s "$dir/address" ] && break
    kill -0 $pid 2> /dev/null || break
    sleep 0.05
done
port=$(sed 's/.*://' "$dir/address")
[ -n "$port" ] || { fail "it doesn't serve: $(cat "$dir/said")"; finish; }
export TEST_ABUSE_PORT=$port TEST_ABUSE_PID=$pid TEST_ABUSE_LIMIT=128
export TEST_ABUSE_BODY='{"model": "model", "prompt": "a", "max_tokens": 500, "n": 4, "stream": true}'
for case in malformed_requests slow_and_vanishing_clients gigabytes connections_beyond_the_limit many_short_requests; do
    check "$case" "$abuse" $case
done
kill -TERM $pid
status=0
wait $pid || status=$?
pid=
check "it ends as asked for: $status" [ $status = 0 ]
check "no request of the 100,000 is an error of the server's" [ -z "$(grep -E ' 500 |internal' "$dir/said" | head -3)" ]
finish
