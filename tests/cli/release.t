#!/bin/bash
# The release folder and its install.sh, from a folder and from a local web server, and installs that fail.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
build=$(dirname "$SUROGATE")
[ -e "$build/libsurogate.so" ] || {
    skip "this build has no libsurogate.so"
    finish
}
for tool in python3 curl; do
    command -v $tool > /dev/null || {
        skip "no $tool here"
        finish
    }
done

tools/release "$build" "$dir/release" > "$dir/out" 2>&1 || fail "tools/release: $(cat "$dir/out")"
archive=$(basename "$dir"/release/surogate-*.tar.gz)
check "a folder with script, archive and wheel" test -s "$dir/release/install.sh" -a -s "$dir/release/$archive"
check "the script knows the archive's hash" grep -q "^sha256='$(sha256sum < "$dir/release/$archive" | cut -d' ' -f1)'" "$dir/release/install.sh"
mkdir "$dir/home"
export HOME=$dir/home
cd "$dir" || exit 1

# /cut/...: half of the file, with the length of the whole file. /slow/...: never ends.
cat > server.py << 'EOC'
import http.server, pathlib, sys, time
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        kind, _, name = self.path[1:].partition("/")
        if kind not in ("cut", "slow"):
            return super().do_GET()
        data = pathlib.Path("release", name).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        if kind == "slow":
            time.sleep(60)
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
pathlib.Path("port.partial").write_text(str(server.server_port))
pathlib.Path("port.partial").rename("port")
server.serve_forever()
EOC
python3 server.py 2> server.log &
server=$!
trap 'kill $server; rm -rf "$dir"' EXIT
for _ in $(seq 100); do
    [ -e port ] && break
    sleep 0.1
done
url=http://127.0.0.1:$(cat port)

runs() { home/.surogate/bin/surogate version > version 2>&1; }
installs() { # NAME ARGS...: the install succeeds and the program runs
    local name=$1
    shift
    if sh release/install.sh "$@" > out 2> err; then pass; else fail "$name: $(cat out err)"; fi
    check "$name: the program runs" runs
    check "$name: nothing is left beside it" test -z "$(find home/.surogate -name '.*' -not -name .surogate)"
}
# refuses NAME TEXT ARGS...: the install fails, and the installed version stays.
refuses() {
    local name=$1 text=$2 before
    shift 2
    before=$(find home | sort)
    if sh release/install.sh "$@" > out 2> err; then
        fail "$name: it was installed"
    elif ! grep -qF -e "$text" err; then
        fail "$name: expected \"$text\" in: $(cat err)"
    else
        check "$name: what was there stays" test "$before" = "$(find home | sort)"
    fi
}

installs "a folder" release
check "what GPUs lack is said" grep -q '^GPU' out
check "nothing lies outside of its folder" test "$(ls -A home)" = .surogate
rm -rf home/.surogate
curl -fsS "$url/release/install.sh" | sh -s -- "$url/release" > out 2> err || fail "by curl | sh: $(cat err)"
check "by curl | sh" runs
installs "over itself" "$url/release"
check "a C program finds header and library where they lie" grep -qF "prefix=\${pcfiledir}/../.." home/.surogate/current/lib/pkgconfig/surogate.pc
check "the library has its links" test -L home/.surogate/current/lib/libsurogate.so -a -s home/.surogate/current/lib/libsurogate.so
check "no list of a folder where nothing is" test ! -e home/.surogate/current/share/surogate/installed
check "completions and schema are there" test -s home/.surogate/current/share/zsh/site-functions/_surogate -a -s home/.surogate/current/share/surogate/run.schema.json
rm home/.surogate/current/bin/surogate
installs "over a damaged one, from file://" "file://$dir/release"

mkdir -p "home/it's here/releases/mine"
installs "into a folder with blanks, from one" --prefix "home/it's here" "$(cp -r release "home/re lease" && echo "home/re lease")"
check "it runs there" "home/it's here/bin/surogate" version
sh release/install.sh --prefix "home/it's here" release > out 2> err || fail "again: $(cat err)"
check "what others have beside it stays" test "$(ls "home/it's here/releases" | wc -l) $(ls -d "home/it's here/releases/mine" | wc -l)" = "2 1"
for name in current bin/surogate; do
    mkdir -p "home/theirs/$(dirname $name)" && echo mine > home/theirs/$name
    refuses "$name of somebody else" "isn't install.sh's" --prefix home/theirs release
    rm home/theirs/$name && ln -s /usr/bin home/theirs/$name
    refuses "a link $name of somebody else" "isn't install.sh's" --prefix home/theirs release
    rm home/theirs/$name
done

refuses "http of another machine" "isn't https" http://example.org/surogate
refuses "a name that begins like this machine's" "isn't https" http://localhost.example.org/surogate
refuses "a name behind an @" "isn't https" http://localhost@example.org/surogate
refuses "another scheme" "expected https" ftp://localhost/surogate
refuses "a folder that isn't there" "there is no folder" nowhere
refuses "an unknown option" "unknown option" --root
sh -c 'head -c $(($(wc -c < release/install.sh) / 2)) release/install.sh | sh' > out 2> err
check "half of the script does nothing" test "$(find home -name '.partial*' | wc -l)" = 0

# Installs of the next release, which fail in every way before one succeeds.
old=$(readlink home/.surogate/current)
mkdir next
gzip -dc "release/$archive" > next/plain
printf 'more' >> next/plain # bytes after the end of the archive
gzip -9n < next/plain > "next/$archive"
sed "s/^sha256=.*/sha256='$(sha256sum < "next/$archive" | cut -d' ' -f1)'/" release/install.sh > next.sh
mv release first
mkdir release
mv "next/$archive" release/
mv next.sh release/install.sh
refuses "a download that ends early" "couldn't be fetched whole" "$url/cut"
refuses "a file that isn't there" "couldn't be fetched whole" "$url/nowhere"
refuses "the archive of another release" "expected" first
if (ulimit -f 1000 && sh release/install.sh "$url/release") > out 2> err; then fail "a full disk: it was installed"; else pass; fi
check "a full disk: what was there stays" test "$(readlink home/.surogate/current)" = "$old" -a -z "$(find home -name '.partial*')"
setsid sh release/install.sh "$url/slow" > slow.out 2> slow.err &
first=$!
for _ in $(seq 100); do
    [ -e "home/.surogate/.partial.$first/archive" ] && break
    sleep 0.1
done
refuses "a second one at once" "another install.sh is at work" release
kill -KILL -- -$first
wait $first 2> /dev/null
for signal in TERM KILL; do
    setsid sh release/install.sh "$url/slow" > out 2> err & # a process group of its own
    victim=$!
    for _ in $(seq 100); do
        [ -e "home/.surogate/.partial.$victim/archive" ] && break
        sleep 0.1
    done
    check "$signal: it was under way" test -e "home/.surogate/.partial.$victim/archive"
    kill -$signal -- -$victim
    wait $victim 2> /dev/null
    check "$signal: it failed" test $? != 0
    check "$signal: the program runs" runs
    check "$signal: it is the old one" test "$(readlink home/.surogate/current)" = "$old"
done
installs "the next release" "$url/release"
check "it took the old one's place" test "$(readlink home/.surogate/current)" != "$old" -a "$(ls home/.surogate/releases | wc -l)" = 1

# Uninstalling.
check "--help" grep -qF -e "--uninstall    removes" <(sh release/install.sh --help)
mkdir -p home/theirs
ln -s /usr/bin home/theirs/current
refuses "--uninstall of somebody else's" "isn't install.sh's" --uninstall --prefix home/theirs
refuses "--uninstall where nothing is" "there is no Surogate in $dir/home/nowhere" --uninstall --prefix home/nowhere
sh release/install.sh --uninstall --prefix "home/it's here" > out 2> err || fail "--uninstall: $(cat err)"
check "it removes what it made, and no more" test "$(cd "home/it's here" && find . | sort | tr '\n' ' ')" = ". ./releases ./releases/mine "
sh release/install.sh --uninstall > out 2> err || fail "--uninstall of the home folder: $(cat err)"
check "all of it" test ! -e home/.surogate
finish
