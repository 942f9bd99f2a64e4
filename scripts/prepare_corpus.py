"""Prepares the King James corpus by a fixed rule, so that everybody trains on the same bytes.

The dump of the `bible` tool has one verse per line, headed by its reference. Tokens are words and single
marks. Chapters are numbered from 0 in order; of every twenty, number 18 goes to valid.txt and number 19 to
test.txt, the others to train.txt. Words seen fewer than three times in train.txt become <unk>. Only Python's
standard library is used. Called by fetch_corpus.sh with the folder.
"""
import collections
import hashlib
import os
import re
import shutil
import subprocess
import sys

DUMP = "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d"
FILES = {
    "train": "77fb9b57dbc0993fe5ee08a79e9d5eb0d10c0352e289b95e4c18e63bf5cdfda6",
    "valid": "1be3b6fd98a7c07ab5c7790241a9d7771b9f72aed651139ff288ec576cbb8283",
    "test": "73c29a5a1a7ec8d5651e17ce7b60e42c37fc3f93415cf18ae368c8b029d177ed",
}
TOKEN = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|[^\sA-Za-z]")
LEAST_COUNT = 3


def fail(text):
    print(f"fetch_corpus: {text}", file=sys.stderr)
    sys.exit(1)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def file_is(path, digest):
    try:
        with open(path, "rb") as file:
            return sha256(file.read()) == digest
    except OSError:
        return False


def dump():
    """All verses, as the bible tool prints them with pretty printing off."""
    tool = shutil.which("bible")
    if tool is None:
        fail("the tool `bible` is missing: run scripts/setup.sh "
             "(Debian packages bible-kjv and bible-kjv-text)")
    done = subprocess.run([tool, "-f", "Ge1:1-Re22:21"], stdin=subprocess.DEVNULL, capture_output=True,
                          check=False)
    if done.returncode != 0:
        fail(f"{tool} ended with status {done.returncode}: {done.stderr.decode('latin-1').strip()}")
    if sha256(done.stdout) != DUMP:
        fail(f"the text of this machine's bible-kjv-text differs: {len(done.stdout)} bytes with sha256 "
             f"{sha256(done.stdout)}, expected 4404412 bytes with {DUMP}")
    return done.stdout.decode("latin-1")


def split(text):
    """Lists of tokens per verse, by split."""
    parts = {name: [] for name in FILES}
    chapters = -1
    last = None
    for line in text.splitlines():
        reference, _, verse = line.partition(" ")
        chapter = reference.partition(":")[0]
        if chapter != last:
            chapters += 1
            last = chapter
        name = {18: "valid", 19: "test"}.get(chapters % 20, "train")
        parts[name].append(TOKEN.findall(verse))
    return parts


def main():
    if len(sys.argv) != 2:
        fail("takes one argument, the folder to write to")
    folder = sys.argv[1]
    paths = {name: os.path.join(folder, name + ".txt") for name in FILES}
    if all(file_is(paths[name], FILES[name]) for name in FILES):
        print(f"corpus: {folder} is complete")
        return
    parts = split(dump())
    counts = collections.Counter(token for verse in parts["train"] for token in verse)
    data = {}
    for name, verses in parts.items():
        lines = (" ".join(t if counts[t] >= LEAST_COUNT else "<unk>" for t in verse) for verse in verses)
        data[name] = ("\n".join(lines) + "\n").encode("latin-1")
        if sha256(data[name]) != FILES[name]:
            fail(f"{name}.txt came out with sha256 {sha256(data[name])}, expected {FILES[name]}: "
                 "nothing was written")
    try:
        os.makedirs(folder, exist_ok=True)
        for name in FILES:
            with open(paths[name] + ".part", "wb") as file:
                file.write(data[name])
            os.replace(paths[name] + ".part", paths[name])
    except OSError as error:
        fail(f"cannot write {error.filename}: {error.strerror}")
    print(f"corpus: wrote {', '.join(f'{n}.txt ({len(parts[n])} verses)' for n in FILES)} to {folder}, "
          "sha256 as expected")


main()
