#!/bin/sh
# Prints the tag of images of this checkout: the version, the commit, and a digest of what is not committed.
# So two builds that differ have two tags, and an upgrade replaces the pods. Where git does not know these files,
# the tag is the version.
set -eu
cd "$(dirname "$0")/.."
tag=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
if git ls-files --error-unmatch pyproject.toml >/dev/null 2>&1; then
    tag=$tag-$(git rev-parse --short=12 HEAD)
    if [ -n "$(git status --porcelain)" ]; then
        # Of a file that is not added yet: its name and what is in it. One that cannot be read has its name alone.
        changes=$({
            git diff HEAD
            git ls-files --others --exclude-standard
            git ls-files --others --exclude-standard -z | xargs -0 -r -n 1 git hash-object -- 2>/dev/null || true
        } | git hash-object --stdin | cut -c 1-8)
        tag=$tag-dirty-$changes
    fi
fi
echo "$tag"
