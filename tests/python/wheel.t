#!/bin/bash
# The wheel in a fresh environment: its command runs and its package trains, without any file of the source tree.
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
for site in "$dir"/venv/lib/python3*/site-packages; do # uses an installed NumPy, so that nothing is downloaded
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

# A small quickstart with only the environment on the path: no compiler, no tool of the system.
alone() { env -i HOME="$dir" PATH="$dir/venv/bin" "$@" > out 2> err || fail "$*: $(cat err)"; }
for name in train heldout; do
    mkdir -p "text/$name"
    for page in 1 2 3 4; do
        yes "NAME: page $page of $name - to be or not to be. SYNOPSIS: page [OPTION]... FILE" | head -n 60 > "text/$name/$page.txt"
    done
done
alone surogate tokenizer train --vocab-size 300 --out tokenizer text/train
alone surogate new --arch qwen3-tiny config --tokenizer tokenizer vocab_size=300 hidden_size=32 intermediate_size=64 num_hidden_layers=2 \
    num_attention_heads=2 num_key_value_heads=1 head_dim=16 max_position_embeddings=256 bos_token_id=null eos_token_id=0
cat > run.yaml << 'EOC'
model: config
tokenizer: tokenizer
from_scratch: true
datasets: [{path: text/train, type: text}]
output_dir: quick
sequence_len: 64
per_device_train_batch_size: 4
max_steps: 20
device: cpu
EOC
alone surogate pt run.yaml
alone surogate eval quick --text text/heldout
check "the quickstart trains and evaluates" grep -q '^bits per byte' out
alone surogate generate quick --prompt 'NAME: ' --max-tokens 8
check "it generates" test -s out

needs=$(unzip -p "$wheel" '*/METADATA' 2> /dev/null || "$PYTHON" -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel: print(wheel.read(next(n for n in wheel.namelist() if n.endswith("/METADATA"))).decode())' "$wheel")
for name in cublas cudnn-cu13 nccl-cu13 cuda-nvrtc; do
    check "an extra has nvidia-$name" grep -q "^Requires-Dist: nvidia-$name>=.*; extra == \"cuda13\"" <<< "$needs"
done

if command -v dpkg-query > /dev/null; then
    "$PYTHON" -m zipfile -e "$wheel" unpacked
    check "the notices of what is inside" grep -qF "libyaml-dev" unpacked/surogate-*.dist-info/licenses/THIRD_PARTY_NOTICES
fi

# A wheel for people who work on the source tree.
"$PYTHON" "$root/tools/wheel" --dev "$build" "$dir/dev" > out 2>&1 || fail "tools/wheel --dev: $(cat out)"
"$dir/venv/bin/pip" install -q --no-deps --no-index "$dir"/dev/surogate-*+dev-*.whl > out 2>&1 || fail "pip: $(cat out)"
alone venv/bin/python -c 'import surogate; print(surogate.__file__, surogate.__version__)'
check "the package is the source tree's" grep -qF "$root/python/surogate/__init__.py" out
alone surogate version
check "so is the command" grep -q '^surogate [0-9]' out
finish
