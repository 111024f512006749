#!/bin/bash
# The wheel in a fresh environment: its command runs, and its package trains, with nothing of the source tree.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
build=$(dirname "$SUROGATE")
[ -e "$build/libsurogate.so" ] || {
    skip "this build has no libsurogate.so"
    finish
}
for PYTHON in ${PYTHON:-python3 /usr/bin/python3}; do
    "$PYTHON" -c 'import sys, numpy, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2> /dev/null && break
    PYTHON=
done
[ "$PYTHON" ] && command -v readelf ldd > /dev/null || {
    skip "no Python 3.10 with NumPy and venv here"
    finish
}

"$PYTHON" tools/wheel "$build" "$dir/a" > "$dir/out" 2>&1 || fail "tools/wheel: $(cat "$dir/out")"
"$PYTHON" tools/wheel "$build" "$dir/b" > /dev/null
wheel=$(echo "$dir"/a/surogate-*-py3-none-manylinux_2_*_x86_64.whl)
check "it has one name" test -e "$wheel"
check "twice the same" cmp "$wheel" "$dir/b/$(basename "$wheel")"

"$PYTHON" -m venv "$dir/venv"
for site in "$dir"/venv/lib/python3*/site-packages; do # NumPy where it is: nothing is downloaded
    "$PYTHON" -c 'import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])' > "$site/numpy.pth"
done
"$dir/venv/bin/pip" install -q --no-deps --no-index "$wheel" > "$dir/out" 2>&1 || fail "pip: $(cat "$dir/out")"
cp -r examples/shakespeare "$dir/model"
cd "$dir" || exit 1
env -u SUROGATE_LIBRARY venv/bin/surogate version > out 2> err || fail "the command: $(cat err)"
check "the command is the program" grep -q '^surogate [0-9]' out
env -u SUROGATE_LIBRARY venv/bin/surogate no-such-command > out 2> err
check "its exit status is the program's" test $? = 2
cat > train.py << 'EOC'
import surogate
trainer = surogate.Trainer.from_scratch("model", sequence_len=8, per_device_train_batch_size=2, gradient_accumulation_steps=1)
print(surogate.__file__, trainer.train_step([1, 2, 3, 4], lr=1e-3).loss > 0)
EOC
env -u SUROGATE_LIBRARY venv/bin/python train.py > out 2> err || fail "the package: $(cat err)"
check "the package is the wheel's, and trains" grep -q 'venv/.*/surogate/__init__.py True' out
finish
