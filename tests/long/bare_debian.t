#!/bin/bash
# A bare Debian 12 (debootstrap, chroot): Debian package, archive and wheel install there with the packages that they say they need, and
# train, evaluate and generate. Needs root, debootstrap and a mirror (MIRROR; deb.debian.org): downloads 200 MB.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
build=$(dirname "$SUROGATE")
mirror=${MIRROR:-http://deb.debian.org/debian}
missing=
[ "$(id -u)" = 0 ] || missing="not root"
for tool in debootstrap chroot dpkg-deb dpkg-shlibdeps; do command -v $tool > /dev/null || missing="no $tool here"; done
[ -e "$build/libsurogate.so" ] || missing="this build has no libsurogate.so"
[ -z "$missing" ] || {
    skip "$missing"
    finish
}
base=$dir/base
debootstrap --variant=minbase bookworm "$base" "$mirror" > "$dir/log" 2>&1 || {
    skip "debootstrap can't make a Debian 12 here: $(tail -1 "$dir/log")"
    finish
}
mount --bind /proc "$base/proc" 2> /dev/null || true # a container may refuse this; the program works without
trap 'umount "$base/proc" 2> /dev/null; rm -rf "$dir"' EXIT
cp /etc/resolv.conf "$base/etc/" 2> /dev/null
cp /etc/apt/apt.conf.d/*proxy* "$base/etc/apt/apt.conf.d/" 2> /dev/null
tools/release "$build" "$dir/dist" > "$dir/log" 2>&1 || fail "tools/release: $(tail -3 "$dir/log")"
make deb BUILD="$build" > "$dir/log" 2>&1 || fail "make deb: $(tail -3 "$dir/log")"
version=$("$SUROGATE" version | awk 'NR == 1 { sub(",", "", $2); print $2 }')
cp "dist/surogate_${version}_amd64.deb" "$dir/dist/surogate.deb"
cp -r "$dir/dist" "$base/dist"

# inside NAME COMMAND: runs it in a shell of the bare system; $dir/out is its output.
inside() {
    env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        chroot "$base" /bin/sh -euc "$2" > "$dir/out" 2>&1 || {
        fail "$1: $(tail -5 "$dir/out")"
        return 1
    }
    pass
}
# works NAME SUROGATE: makes, trains, evaluates and queries a tiny model.
works() {
    inside "$1: trains, evaluates, generates" "
        rm -rf /try && mkdir /try && cd /try
        for i in \$(seq 400); do echo \"Line \$i says that it goes on.\"; done > a.txt
        $2 tokenizer train --vocab-size 300 --out tokenizer a.txt
        $2 new --arch qwen3-tiny config --tokenizer tokenizer
        printf '%s\n' 'model: config' 'from_scratch: true' 'datasets: [{path: a.txt}]' 'output_dir: made' 'sequence_len: 64' \
            'per_device_train_batch_size: 2' 'gradient_accumulation_steps: 1' 'max_steps: 3' > run.yaml
        $2 pt run.yaml
        $2 eval made --text a.txt | grep '^bits per byte'
        $2 generate made --prompt Line --max-tokens 4
        $2 doctor | grep 'no NVIDIA driver'"
}
inside "apt" "apt-get update -qq"

name="Debian package"
inside "$name: dpkg says what it needs" "! dpkg -i /dist/surogate.deb 2> needs && grep 'surogate depends on libyaml-0-2' needs"
inside "$name: apt brings what it needs" "apt-get install -y -qq --no-install-recommends -f && dpkg -s surogate | grep 'Status: install ok installed'" &&
    works "$name" surogate
inside "$name: what it installed" "test -s /usr/share/man/man1/surogate.1.gz -o -e /etc/dpkg/dpkg.cfg.d/docker && test -s /usr/include/surogate.h && ldconfig -p | grep libsurogate.so.1"
inside "$name: it goes away whole" "apt-get purge -y -qq surogate && ! command -v surogate && test ! -e /usr/share/surogate"

name=archive
inside "$name: installs without a network" "sh /dist/install.sh /dist" && works "$name" /root/.surogate/bin/surogate
inside "$name: goes away whole" "sh /dist/install.sh --uninstall && test ! -e /root/.surogate"

name=wheel
inside "$name: Python and NumPy" "apt-get install -y -qq --no-install-recommends python3-venv python3-numpy && python3 -m venv --system-site-packages /venv" &&
    inside "$name: installs" "/venv/bin/pip install -q --no-index /dist/*.whl" && works "$name" /venv/bin/surogate
inside "$name: its package trains" "cd /try && /venv/bin/python -c \"
import surogate
trainer = surogate.Trainer.from_scratch('config', sequence_len=8, per_device_train_batch_size=2, gradient_accumulation_steps=1)
assert trainer.train_step([1, 2, 3, 4], lr=1e-3).loss > 0
\""
finish
