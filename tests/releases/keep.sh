#!/bin/sh
# Stores the parts of a release that upgrade tests need: its library for both architectures, its programs and manifests.
# Usage: tests/releases/keep.sh VERSION COMMIT, in a clone that has the commit. The same compilers produce the same bytes.
set -eu

version=$1
commit=$2
root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
kept=$root/tests/releases/$version
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT

mkdir -p "$kept"
git -C "$root" archive "$commit" | tar --extract --directory "$work"
for compiler in gcc aarch64-linux-gnu-gcc; do
    make --silent --directory "$work/interposer" "CC=$compiler" "BUILD=$work/$compiler" "$work/$compiler/libgpushare.so"
    machine=$("$compiler" -dumpmachine | cut -d- -f1)
    # The build ID depends on the directory, because debug information names it.
    objcopy=$("$compiler" -print-prog-name=objcopy)
    "$objcopy" --strip-all --remove-section=.note.gnu.build-id "$work/$compiler/libgpushare.so" \
        "$kept/libgpushare-$machine.so"
    chmod 644 "$kept/libgpushare-$machine.so"
done
git -C "$root" archive --format=zip --output="$kept/programs.zip" "$commit" gpushare deviceplugin webhook \
    config/base tests/deviceplugin/arbiter_node.py
ls -l "$kept"
