#!/usr/bin/env bash
# Copyright The Prebind Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Publishes the files in the directory RELEASE: pushes the image and the chart, and creates the release on GitHub with the program gh.
# The workflow release runs it. It can be repeated. REGISTRY and PLAIN_HTTP are for tests.
set -euo pipefail
export GH_REPO=prebind/prebind
registry=${REGISTRY:-ghcr.io/prebind}

die() { echo "error: $*" >&2; exit 1; }
root=$PWD
tool() { go tool -modfile="$root/tools.mod" "$@"; }

# refuse_other REFERENCE TEXT: fails if the registry has a manifest without the text.
refuse_other() {
	if found=$(tool oras manifest fetch "$1" 2>&1); then
		[[ $found == *"$2"* ]] || die "$1 is published with other content: a published version never changes, so release a new version"
	else
		# Some registries do not disclose that a repository is missing. If the permission is missing, the push fails.
		[[ $found =~ "not found"|"status code 401"|"status code 403" ]] || die "reading $1: $found"
	fi
}

# All checks come before the first write.
number=${VERSION#v}
image=$RELEASE/prebind-$VERSION-image.tar
chart=$RELEASE/prebind-$number.tgz
(cd "$RELEASE" && sha256sum --check --strict --quiet SHA256SUMS) || die "$RELEASE is not a release, or was changed: run make release"
for platform in $PLATFORMS; do
	grep -q "  prebind-$VERSION-${platform/\//-}.tar.gz\$" "$RELEASE/SHA256SUMS" || die "$platform is missing: run make release without PLATFORMS"
done
commit=$(git rev-parse --verify --quiet "refs/tags/$VERSION^{commit}") || die "no tag $VERSION: run git tag -s $VERSION -m $VERSION"
index=$(tool oras manifest fetch --oci-layout "$image:$VERSION")
[[ $index == *"\"org.opencontainers.image.revision\":\"$commit\""* ]] ||
	die "$image is not from $commit, the commit of the tag: check out the tag and run make release"
refuse_other "$registry/prebind:$VERSION" "$index"
refuse_other "$registry/charts/prebind:$number" "$(sha256sum "$chart" | cut -d ' ' -f 1)"
draft=$(gh release view "$VERSION" --json=isDraft --jq=.isDraft 2>&1) || [[ $draft == *"release not found"* ]] || die "reading the release: $draft"
[[ $draft != false ]] || die "the release $VERSION on GitHub is published: release a new version"

# Users do not see a draft. Without permission for it, nothing is pushed.
case $VERSION in *-*) prerelease=true ;; *) prerelease=false ;; esac
[[ $draft == true ]] || gh release create "$VERSION" --draft --verify-tag --title="$VERSION" --prerelease=$prerelease \
	--notes-file="$RELEASE/release-notes.md"
cut -d ' ' -f 3 "$RELEASE/SHA256SUMS" | (cd "$RELEASE" && xargs gh release upload "$VERSION" --clobber SHA256SUMS)
tool oras cp --from-oci-layout "$image:$VERSION" "$registry/prebind:$VERSION"
touch --date="$(git log -1 --format=%cI "$commit")" "$chart" # Helm adds this time, so that a repetition pushes the same.
TZ=UTC tool helm push ${PLAIN_HTTP:+--plain-http} "$chart" "oci://$registry/charts"
(cd charts && tool oras push "$registry/charts/prebind:artifacthub.io" --config=/dev/null:application/vnd.cncf.artifacthub.config.v1+yaml \
	artifacthub-repo.yml:application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml)

# GitHub creates private packages.
anonymous=$(mktemp -d)
for reference in "prebind:$VERSION" "charts/prebind:$number"; do
	DOCKER_CONFIG=$anonymous tool oras resolve "$registry/$reference" || die "$registry/$reference cannot be read without credentials:" \
		"set the visibility of the package to public in https://github.com/orgs/prebind/packages, and repeat the publication"
done
gh release edit "$VERSION" --draft=false
