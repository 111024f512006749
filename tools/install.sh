#!/bin/sh
# Installs Surogate @VERSION@:   curl -fsS URL/install.sh | sh        or   sh install.sh [--prefix DIR] [FOLDER | URL]
# Removes it:   sh install.sh --uninstall [--prefix DIR]
#
# FOLDER or URL: where the release is; https, or http of this machine. DIR: default ~/.surogate. Needs neither root nor a compiler, and
# changes nothing outside of DIR: put DIR/bin/surogate on the PATH. An installed version is replaced only when the new one is complete.
set -eu

version='@VERSION@'
archive='@ARCHIVE@'
sha256='@SHA256@'
source='@URL@'

say() { printf '%s\n' "$*"; }
fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}
has() { command -v "$1" > /dev/null 2>&1; }

# Accepts a folder, or a URL whose data can't be changed on its way: https, or http from this machine.
check_source() {
    case $source in
    '') fail "where the release lies isn't known: name its folder or URL as the argument" ;;
    https://*) return ;;
    http://*)
        host=${source#http://}
        host=${host%%/*}
        case $host in
        *[!A-Za-z0-9.:]*) ;;
        localhost | 127.0.0.1 | localhost:* | 127.0.0.1:*) return ;;
        esac
        fail "$source isn't https; only this machine (localhost, 127.0.0.1) may do without"
        ;;
    file://*) source=${source#file://} ;;
    *://*) fail "$source: expected https://..., or a folder" ;;
    esac
    [ -d "$source" ] || fail "there is no folder $source"
}

check_machine() {
    [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || fail "this release is for Linux on x86-64, here is $(uname -s) on $(uname -m)"
    grep -qw avx2 /proc/cpuinfo || fail "this processor lacks AVX2, which Surogate needs"
    for tool in tar gzip sha256sum; do has "$tool" || fail "$tool is missing: install it, then try again"; done
}

fetch() { # FILE
    case $source in
    https://*)
        if has curl; then
            curl --proto '=https' --tlsv1.2 -fsSL "$source/$archive" -o "$1"
        elif has wget; then
            wget -q --https-only "$source/$archive" -O "$1"
        else
            fail "neither curl nor wget is there: install one, or download the release and name its folder"
        fi
        ;;
    http://*)
        if has curl; then
            curl --proto '=http' -fsS "$source/$archive" -o "$1"
        else
            wget -q --max-redirect=0 "$source/$archive" -O "$1"
        fi
        ;;
    *) cp "$source/$archive" "$1" ;;
    esac || fail "$source/$archive couldn't be fetched whole; nothing was changed"
}

# ours NAME PATTERN: NAME doesn't exist, or is a link to PATTERN, as this script makes it.
ours() {
    if [ -L "$1" ]; then
        # shellcheck disable=SC2254
        case $(readlink "$1") in $2) return ;; esac
    elif [ ! -e "$1" ]; then
        return
    fi
    fail "$1 is there already, and isn't install.sh's: name another folder with --prefix; nothing was changed"
}

# Two installers at the same time would each remove what the other has just installed.
lock() {
    has flock || return 0
    exec 9< "$prefix/releases"
    flock -n 9 || fail "another install.sh is at work in $prefix: wait for its end"
}

# Removes what killed installers left.
remove_leftovers() {
    for left in "$prefix"/.partial.*; do
        [ -d "$left" ] || continue
        kill -0 "${left##*.partial.}" 2> /dev/null || rm -rf "$left"
    done
}

remove_other_releases() {
    for other in "$prefix"/releases/surogate-*; do
        [ "$other" = "$release" ] || rm -rf "$other"
    done
}

# Changes a link in one atomic rename.
link() { # TARGET NAME
    ln -s "$1" "$partial/link"
    mv -fT "$partial/link" "$2"
}

usage() {
    cat << 'EOC'
sh install.sh [--prefix DIR] [FOLDER | URL]     installs Surogate @VERSION@
sh install.sh --uninstall [--prefix DIR]        removes it

FOLDER | URL   where the release lies: https, or http of this machine
--prefix DIR   where it is installed (~/.surogate); nothing outside of it is touched
--uninstall    removes what this script put into DIR; what else is there stays
EOC
}

# The links are removed first: an uninstall that was cut off can be repeated.
uninstall() {
    [ -L "$prefix/current" ] || [ -d "$prefix/releases" ] || fail "there is no Surogate in $prefix: name its folder with --prefix"
    if [ -d "$prefix/releases" ]; then lock; fi
    remove_leftovers
    rm -f "$prefix/bin/surogate" "$prefix/current" || fail "$prefix can't be changed"
    release=
    remove_other_releases
    for folder in releases bin ''; do rmdir "$prefix/$folder" 2> /dev/null || true; done
    say "Surogate is removed from $prefix"
}

tell_gpu() {
    if ! ls "$prefix"/current/lib/libsurogate_cuda*.so > /dev/null 2>&1; then
        say "GPUs: this release has no CUDA plugin; it runs on the CPU"
    elif [ ! -e /dev/nvidiactl ]; then
        say "GPUs: there is no NVIDIA driver here; it runs on the CPU"
    elif ! told=$("$prefix/bin/surogate" doctor --gpu 0 2>&1); then
        say "GPUs can't be used yet: $(printf '%s\n' "$told" | tail -1)"
    else
        say "GPUs can be used (surogate doctor)"
    fi
}

main() {
    prefix=${HOME:-}/.surogate uninstalls=
    while [ $# -gt 0 ]; do
        case $1 in
        --prefix)
            [ $# -gt 1 ] || fail "--prefix needs a folder"
            prefix=$2
            shift
            ;;
        --uninstall) uninstalls=yes ;;
        --help | -h)
            usage
            return
            ;;
        -*) fail "unknown option $1; expected [--uninstall] [--prefix DIR] [FOLDER | URL], or --help" ;;
        *) source=${1%/} ;;
        esac
        shift
    done
    case $prefix in
    /.surogate | '') fail "HOME isn't set: say --prefix DIR" ;;
    /*) ;;
    *) prefix=$PWD/$prefix ;;
    esac
    ours "$prefix/current" 'releases/surogate-*'
    ours "$prefix/bin/surogate" ../current/bin/surogate
    if [ "$uninstalls" ]; then
        uninstall
        return
    fi
    check_source
    check_machine
    partial=$prefix/.partial.$$
    mkdir -p "$prefix/releases" "$prefix/bin" || fail "$prefix can't be written"
    lock
    remove_leftovers
    trap 'rm -rf "$partial"' EXIT
    trap 'exit 130' HUP INT TERM
    mkdir "$partial"
    say "fetching $source/$archive"
    fetch "$partial/archive"
    found=$(sha256sum < "$partial/archive")
    [ "${found%% *}" = "$sha256" ] ||
        fail "$archive has the SHA-256 ${found%% *}, expected $sha256: it is damaged or another release's; nothing was changed"
    mkdir "$partial/new"
    tar -xzf "$partial/archive" -C "$partial/new" --no-same-owner || fail "$archive couldn't be unpacked; nothing was changed"
    told=$("$partial/new/bin/surogate" version 2>&1) || fail "the program doesn't run here: $told; nothing was changed"
    release=$(mktemp -d "$prefix/releases/surogate-$version.XXXXXX")
    mv -T "$partial/new" "$release"
    link "releases/${release##*/}" "$prefix/current"
    link "../current/bin/surogate" "$prefix/bin/surogate"
    remove_other_releases
    say "Surogate $version is installed: $prefix/bin/surogate"
    tell_gpu
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) say "to have it on the PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
}

main "$@" # the last line: a script that arrives incomplete does nothing
