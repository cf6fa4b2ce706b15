#!/usr/bin/env bash
# Copyright The Prebind Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the website of the working tree in bin/site, and that of each release in bin/site/RELEASE:
#
#   docs/site/build.sh [RELEASE...]
#
# All versions have the configuration of the working tree, and the same menu of versions. SITE_BASE is the path of the site on its host.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
base=${SITE_BASE:-/}
# Outside of docs, so that the checks of this repository do not read the modules of Node.
work=bin/site-work
mkdir -p $work
rm -rf $work/.vitepress $work/content
cp -R docs/site/.vitepress docs/site/package*.json $work/
if ! cmp -s $work/package-lock.json $work/installed.json; then
  # No dependency needs a script.
  (cd $work && npm ci --ignore-scripts --no-audit --no-fund)
  cp $work/package-lock.json $work/installed.json
fi

# build VERSION DIR: reads the files of the version from standard input, as a tar archive.
build() {
  rm -rf $work/content && mkdir $work/content
  tar -xf - -C $work/content
  # Not for readers.
  rm -rf $work/content/test $work/content/docs/site
  # Shows files such as manifests as pages.
  (cd $work/content && find docs -name '*.yaml' -o -name '*.json' -o -name '*.txt') | while read -r file; do
    printf -- '---\neditLink: false\naside: false\nsearch: false\n---\n# %s\n\n````%s\n%s\n````\n' "${file##*/}" "${file##*.}" "$(cat "$work/content/$file")" >"$work/content/$file.md"
  done
  SITE_VERSION=$1 SITE_BASE=$base$2 $work/node_modules/.bin/vitepress build $work --outDir "$PWD/bin/site/$2"
}

SITE_RELEASES=
for release; do
  # Older releases have no website.
  if git cat-file -e "$release:docs/site" 2>/dev/null; then SITE_RELEASES+="$release "; fi
done
export SITE_RELEASES
git ls-files -co --exclude-standard '*.md' docs | tar -cf - -T - | build main ''
for release in $SITE_RELEASES; do
  git archive "$release" | build "$release" "$release/"
done
