#!/bin/bash
# surogate.serve from Python: options given several times; no server outlives its interpreter. PYTHON: the interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
SUROGATE_LIBRARY=$(dirname "$SUROGATE")/libsurogate.so
export SUROGATE_LIBRARY PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1

if ! find_python; then
    skip "no Python 3.10 with NumPy here"
    finish
elif [ ! -e "$SUROGATE_LIBRARY" ]; then
    skip "this build has no libsurogate.so"
    finish
fi
make_chat

# python: runs the script on stdin with the model's folder.
python() { timeout 120 "$PYTHON" - "$dir/model" > "$dir/out" 2>&1; }

python << 'END_OF_SCRIPT'
import sys
import surogate

server = surogate.serve(sys.argv[1], device="cpu", threads=1)
print("pid", server._process.pid, flush=True)
END_OF_SCRIPT
pid=$(sed -n 's/^pid //p' "$dir/out")
check "it served: $(cat "$dir/out")" [ -n "$pid" ]
check "it ended with the interpreter" [ -n "$pid" -a ! -e "/proc/${pid:-self}" ]
[ -n "$pid" ] && kill -9 "$pid" 2> /dev/null

python << 'END_OF_SCRIPT'
import sys
import surogate

server = surogate.serve(sys.argv[1], device="cpu", threads=1)
process = server._process
del server
print("status", process.poll())
process.kill()
END_OF_SCRIPT
check "it ended with its object: $(cat "$dir/out")" grep -qx "status 0" "$dir/out"

python << 'END_OF_SCRIPT'
import sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import surogate

with surogate.serve(sys.argv[1], device="cpu", threads=1, allow_host=["one.example", "two.example"], max_queue=3) as server:
    for host in "one.example", "two.example", "three.example":
        try:
            print(host, urlopen(Request(server.url + "/health", headers={"Host": host})).status)
        except HTTPError as error:
            print(host, error.code)
END_OF_SCRIPT
for answer in "one.example 200" "two.example 200" "three.example 403"; do
    check "a list gives an option several times, $answer: $(cat "$dir/out")" grep -qx "$answer" "$dir/out"
done
finish
